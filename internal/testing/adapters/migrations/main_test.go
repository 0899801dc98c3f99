package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratepg "github.com/golang-migrate/migrate/v4/database/postgres"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	instance.Main(play)
	redistest.Main(m)
}

// ttl is short, and tolerates that a process stands still for two seconds.
const ttl = 5 * time.Second

// tools have a function for each tool. It migrates db, with locks of l, or with the tool's own if l is nil. runs is
// called when the first migration begins, outside of a transaction. If it is marked, golang-migrate has noted before
// that the first migration has begun.
var tools = map[string]func(ctx context.Context, l locker.Locker, db *sql.DB, runs func(), marked bool) error{
	"goose":          playGoose,
	"golang-migrate": playMigrate,
}

// play is an instance that migrates a database. It says "runs 1" when it begins with the first migration, and goes on
// when the test says so. args are the tool, the URL of the database, that of the locks, without which the tool uses its
// own, and whether the first migration is marked.
func play(me *instance.Self, args []string) error {
	ctx := context.Background()
	db, err := sql.Open("pgx", args[1])
	if err != nil {
		return err
	}
	var l locker.Locker
	if args[2] != "" {
		opened, err := config.Open(ctx, args[2], locker.TTL(ttl))
		if err != nil {
			return err
		}
		l = watched{opened, me}
	}
	me.Ask("ready")
	err = tools[args[0]](ctx, l, db, func() { me.Ask("runs 1") }, args[3] == "true")
	if err != nil {
		return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	me.Say("done")
	return nil
}

// watched is a Locker that says what happens to its locks.
type watched struct {
	locker.Locker
	me *instance.Self
}

func (w watched) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	w.me.Say("asks")
	lease, err := w.Locker.Lock(ctx, key, opts...)
	if err == nil {
		go func() {
			<-lease.Done()
			w.me.Say("ended: %v", lease.Err())
		}()
	}
	return lease, err
}

// ran is a statement that records that a migration has run.
func ran(version int) string { return fmt.Sprintf("INSERT INTO ran VALUES (%d)", version) }

func playGoose(ctx context.Context, l locker.Locker, db *sql.DB, runs func(), _ bool) error {
	first := goose.NewGoMigration(1, &goose.GoFunc{RunDB: func(ctx context.Context, db *sql.DB) error {
		runs()
		_, err := db.ExecContext(ctx, ran(1))
		return err
	}}, nil)
	second := fstest.MapFS{"00002_second.sql": {Data: []byte("-- +goose Up\n" + ran(2) + ";\n")}}
	opts := []goose.ProviderOption{goose.WithGoMigrations(first)}
	if l == nil {
		own, err := lock.NewPostgresSessionLocker()
		if err != nil {
			return err
		}
		opts = append(opts, goose.WithSessionLocker(own))
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, second, opts...)
	if err != nil {
		return err
	}
	if l == nil {
		_, err := provider.Up(ctx)
		return err
	}
	return gooseUp(ctx, l, provider)
}

func playMigrate(ctx context.Context, l locker.Locker, db *sql.DB, runs func(), marked bool) error {
	files := fstest.MapFS{
		"1_first.up.sql":  {Data: []byte(ran(1))},
		"2_second.up.sql": {Data: []byte(ran(2))},
	}
	if l != nil {
		err := migrateUp(ctx, l, func(ctx context.Context) (*migrate.Migrate, error) {
			d, err := driver(ctx, db)
			if err != nil {
				return nil, err
			}
			return opened(files, &pausing{Driver: d, runs: runs, marked: marked})
		})
		if n := db.Stats().InUse; n != 0 {
			return errors.Join(err, fmt.Errorf("%d connections were not given back", n))
		}
		return err
	}
	d, err := migratepg.WithInstance(db, &migratepg.Config{})
	if err != nil {
		return err
	}
	m, err := opened(files, &pausing{Driver: d, runs: runs, marked: marked})
	if err != nil {
		return err
	}
	return m.Up()
}

func opened(files fs.FS, d database.Driver) (*migrate.Migrate, error) {
	source, err := iofs.New(files, ".")
	if err != nil {
		return nil, err
	}
	return migrate.NewWithInstance("iofs", source, "postgres", d)
}

// pausing is a driver that calls runs when the first migration begins.
type pausing struct {
	database.Driver
	runs    func()
	marked  bool
	version int // of the migration that runs, or has run
}

func (p *pausing) SetVersion(version int, dirty bool) error {
	p.version = version
	if version == 1 && dirty && !p.marked {
		p.runs()
	}
	return p.Driver.SetVersion(version, dirty)
}

func (p *pausing) Run(migration io.Reader) error {
	if p.version == 1 && p.marked {
		p.runs()
	}
	return p.Driver.Run(migration)
}

// connect returns connections to a database, until the end of the test.
func connect(tb testing.TB, url string) *pgxpool.Pool {
	tb.Helper()
	pool, err := pgxpool.New(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}
