package stored

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/internal/testing/golden"
	"github.com/golocker/locker/internal/testing/natstest"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
)

var stores = map[string]func(t *testing.T) store{
	"Redis": func(t *testing.T) store {
		s := redistest.Start(t)
		return store{"redis://" + s.Addr(), s.Dump, true, nil}
	},
	"Redlock": func(t *testing.T) store {
		var nodes []*redistest.Server
		var addrs []string
		for range 3 {
			s := redistest.Start(t)
			nodes, addrs = append(nodes, s), append(addrs, s.Addr())
		}
		return store{"redlock+rueidis://" + strings.Join(addrs, ","), func(tb testing.TB) string {
			var b strings.Builder
			for i, s := range nodes {
				fmt.Fprintf(&b, "node %d:\n%s", i+1, s.Dump(tb))
			}
			return b.String()
		}, true, nil}
	},
	"etcd":       startEtcd,
	"NATS":       startNATS,
	"PostgreSQL": startPostgres,
}

func startEtcd(t *testing.T) store {
	s := etcdtest.Start(t)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Addr()}, DialTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return store{"etcd://" + s.Addr(), func(tb testing.TB) string {
		resp, err := c.Get(tb.Context(), "", clientv3.WithPrefix(),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err != nil {
			tb.Fatal(err)
		}
		var b strings.Builder
		for _, kv := range resp.Kvs {
			lasts := "for ever"
			if kv.Lease != 0 {
				lasts = "with a lease"
			}
			fmt.Fprintf(&b, "%s (%s): %s\n", kv.Key, lasts, kv.Value)
		}
		return b.String()
	}, true, nil}
}

func startNATS(t *testing.T) store {
	s := natstest.Start(t)
	nc, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	bucket := func(tb testing.TB) (jetstream.Stream, *jetstream.StreamInfo) {
		tb.Helper()
		stream, err := js.Stream(tb.Context(), "KV_locker")
		if err != nil {
			tb.Fatal(err)
		}
		info, err := stream.Info(tb.Context(), jetstream.WithSubjectFilter(">"))
		if err != nil {
			tb.Fatal(err)
		}
		return stream, info
	}
	dump := func(tb testing.TB) string {
		stream, info := bucket(tb)
		var b strings.Builder
		for _, subject := range slices.Sorted(maps.Keys(info.State.Subjects)) {
			m, err := stream.GetLastMsgForSubject(tb.Context(), subject)
			if err != nil {
				continue // it has expired
			}
			fmt.Fprintf(&b, "%s: %s\n", subject, ages.ReplaceAll(m.Data, []byte(`"age_ms":<ms>`)))
			for _, header := range slices.Sorted(maps.Keys(m.Header)) {
				value := m.Header.Get(header)
				switch header {
				case "Locker-Bucket": // the time of its creation, with letters
					value = "<time>"
				case "Locker-TTL", "Nats-TTL": // of a lock that is kept, what is left
					value = "<duration>"
				}
				fmt.Fprintf(&b, "  %s: %s\n", header, value)
			}
		}
		return b.String()
	}
	settings := func(tb testing.TB) string {
		_, info := bucket(tb)
		info.Config.Metadata = nil // has the version of the server
		text, err := json.MarshalIndent(info.Config, "", "  ")
		if err != nil {
			tb.Fatal(err)
		}
		return string(text)
	}
	return store{s.URL(), dump, false, settings}
}

// ages are the times for which a lock was held.
var ages = regexp.MustCompile(`"age_ms":\d+`)

// startPostgres also compares the schema.
func startPostgres(t *testing.T) store {
	s := pgtest.Start(t)
	db, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close(t.Context()) })
	if _, err := postgreslock.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	schema(t, db)
	return store{s.URL("postgres"), func(tb testing.TB) string {
		return rows(tb, db, "locks") + rows(tb, db, "waiters") + rows(tb, db, "undone")
	}, true, nil}
}

// rows returns what a table has.
func rows(tb testing.TB, db *pgx.Conn, table string) string {
	all, err := db.Query(tb.Context(), "SELECT * FROM locker."+table)
	if err != nil {
		tb.Fatal(err)
	}
	defer all.Close()
	var b strings.Builder
	for all.Next() {
		values, err := all.Values()
		if err != nil {
			tb.Fatal(err)
		}
		b.WriteString(table + ":")
		for i, column := range all.FieldDescriptions() {
			switch v := values[i].(type) {
			case time.Time:
				values[i] = "<time>"
			case []byte:
				values[i] = string(v)
			}
			fmt.Fprintf(&b, " %s=%v", column.Name, values[i])
		}
		b.WriteString("\n")
	}
	if err := all.Err(); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

// schema compares the tables and functions, which programs call, and the migrations: databases have them as they were.
func schema(t *testing.T, db *pgx.Conn) {
	t.Helper()
	file := golden.Open(t, "schema.txt", "A migration that was released is not changed, but followed by another one. "+why)
	for _, what := range []struct{ title, query string }{
		{"tables", `SELECT format('%s.%s %s %s', table_name, column_name, data_type,
			CASE WHEN is_nullable = 'YES' THEN 'NULL' ELSE 'NOT NULL' END)
			FROM information_schema.columns WHERE table_schema = 'locker' ORDER BY table_name, ordinal_position`},
		{"functions", `SELECT format('%s(%s) %s', proname, pg_get_function_identity_arguments(oid),
			pg_get_function_result(oid))
			FROM pg_proc WHERE pronamespace = 'locker'::regnamespace
			ORDER BY proname::text COLLATE "C", 1`},
	} {
		all, err := db.Query(t.Context(), what.query)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(all, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		file.Section(what.title, strings.Join(lines, "\n"))
	}
	files, err := filepath.Glob("../../../../../backends/postgreslock/migrations/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no migrations: %v", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file.Section(filepath.Base(name), fmt.Sprintf("sha256 %x", sha256.Sum256(text)))
	}
}
