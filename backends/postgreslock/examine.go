package postgreslock

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker/inspect"
)

// health is what Examine reads, in one statement that needs no rights.
type health struct {
	Version                               string
	Number, Standbys                      int
	Standby, ReadOnly, Fsync, Synchronous bool
	Isolation, User                       string
	Schema                                bool
	Missing, Forbidden, Prepared          []string
}

const healthSQL = `
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
	(SELECT count(*)::int FROM pg_stat_replication) AS standbys, pg_is_in_recovery() AS standby,
	current_setting('transaction_read_only')::boolean AS read_only, current_setting('fsync')::boolean AS fsync,
	current_setting('synchronous_standby_names') <> '' AS synchronous,
	current_setting('transaction_isolation') AS isolation, current_user::text AS "user",
	coalesce(has_schema_privilege(to_regnamespace($1), 'USAGE'), false) AS schema,
	ARRAY(SELECT f FROM unnest($2::text[]) f
		WHERE NOT EXISTS (SELECT FROM pg_proc p WHERE p.proname = f AND p.pronamespace = to_regnamespace($1)
			AND (f NOT LIKE 'acquire%' OR 'a_version' = ANY (p.proargnames)))) AS missing,
	ARRAY(SELECT p.proname::text FROM pg_proc p WHERE p.proname = ANY ($2) AND p.pronamespace = to_regnamespace($1)
		AND NOT has_function_privilege(p.oid, 'EXECUTE')) AS forbidden,
	ARRAY(SELECT gid FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - interval '1 minute') AS prepared`

// functions are those that programs call.
var functions = []string{
	"acquire", "acquire_some", "acquire_entry", "extend", "extend_some", "share", "release", "release_some", "undo",
	"verify", "in_tx", "inspect_all",
}

// Examine implements [inspect.Examiner].
func (b *store) Examine(ctx context.Context) []inspect.Finding {
	if b.enter() != nil {
		return nil
	}
	defer b.calls.Done()
	schema := pgx.Identifier{b.schema}.Sanitize()
	conn, err := b.connection(ctx, b.timeout)
	if err != nil {
		return []inspect.Finding{{Check: "server", Level: inspect.Fail, Text: err.Error(), Fix: remedy(err)}}
	}
	defer conn.Release()
	rows, _ := conn.Query(ctx, healthSQL, schema, functions) // CollectExactlyOneRow returns the error
	h, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[health])
	if err != nil {
		return []inspect.Finding{{Check: "server", Level: inspect.Fail, Text: err.Error(), Fix: remedy(err)}}
	}
	return h.findings(b.schema)
}

func (h health) findings(schema string) (all []inspect.Finding) {
	add := func(check string, level inspect.Level, fix, format string, args ...any) {
		all = append(all, inspect.Finding{Check: check, Level: level, Text: fmt.Sprintf(format, args...), Fix: fix})
	}
	if h.Number < 130000 {
		add("version", inspect.Fail, "use PostgreSQL 13 or newer", "PostgreSQL %s", h.Version)
	} else {
		add("version", inspect.OK, "", "PostgreSQL %s", h.Version)
	}
	switch {
	case h.Standby:
		add("role", inspect.Fail, readOnly, "the server is a standby, and takes no writes")
	case h.ReadOnly:
		add("role", inspect.Fail, readOnly, "transactions of user %s are read only", h.User)
	default:
		add("role", inspect.OK, "", "the server takes writes")
	}
	if !h.Fsync {
		add("persistence", inspect.Warn, "set fsync = on", "a crash of the machine may forget locks and tokens")
	}
	if h.Standbys > 0 && !h.Synchronous {
		add("replicas", inspect.Warn, "set synchronous_standby_names, or let the resource compare fencing tokens",
			"%d standbys follow asynchronously: one that takes over may lack the latest locks", h.Standbys)
	}
	switch {
	case len(h.Missing) > 0:
		add("tables", inspect.Fail, oldSchema,
			"schema %s lacks the functions %s, or has old ones", schema, strings.Join(h.Missing, ", "))
	case !h.Schema:
		add("rights", inspect.Fail, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", schema, h.User),
			"user %s may not use the schema %s", h.User, schema)
	case len(h.Forbidden) > 0:
		names := schema + "." + strings.Join(h.Forbidden, ", "+schema+".")
		add("rights", inspect.Fail, fmt.Sprintf("GRANT EXECUTE ON FUNCTION %s TO %s", names, h.User),
			"user %s may not call %s", h.User, names)
	default:
		add("rights", inspect.OK, "", "user %s may call all functions of schema %s", h.User, schema)
	}
	if h.Isolation != "read committed" {
		add("isolation", inspect.Fail, advice["LKISO"], "transactions begin as %s", h.Isolation)
	}
	if len(h.Prepared) > 0 {
		add("prepared", inspect.Warn, "COMMIT PREPARED or ROLLBACK PREPARED",
			"there are transactions that were prepared more than a minute ago: %s. If InTx protects one, nobody else gets "+
				"its lock", strings.Join(h.Prepared, ", "))
	}
	return all
}

// remedy says what to do about an error of a connection.
func remedy(err error) string {
	var name *net.DNSError
	if known := advice[code(err)]; known != "" {
		return known
	}
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "name the authority of the server's certificate with sslrootcert"
	case errors.As(err, new(x509.HostnameError)):
		return "connect to a name that the server's certificate has, or issue another certificate"
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return "set ssl = on on the server, or sslmode=disable here in a network that you trust"
	case errors.As(err, &name):
		return "check the name of the host"
	case errors.As(err, new(*net.OpError)):
		return "see whether the server is up, listens at this address (listen_addresses), and is let through by firewalls"
	}
	return "look at the log of the server"
}
