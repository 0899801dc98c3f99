package postgreslock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/golocker/locker"
)

// advice says what to do about errors of the server, by their code.
var advice = map[string]string{
	"3F000": oldSchema, "42883": oldSchema, "42P01": oldSchema, "LKOLD": oldSchema,
	"LKNEW": "the tables of the locks are newer than this program: use the release of the program that ran locker " +
		"migrate, or the one before it",
	"26000": sharedConnection, "42P05": sharedConnection,
	noRight: "grant the user the rights that docs/backends/postgres.md lists",
	"28P01": "check the password, and on the server the user and pg_hba.conf",
	"28000": "see whether the user exists and may log in, and whether pg_hba.conf of the server allows it",
	"3D000": "name a database that exists, or create it",
	"22021": encodings, "22P05": encodings,
	"53200": "give the server more memory; if its lock table is full, raise max_locks_per_transaction",
	"25006": readOnly,
	"0A000": readOnly, "55000": readOnly,
	lockTimeout: "another request for this lock is still under way, or a dump of the schema if tokens are to be raised",
	"LKISO":     "set default_transaction_isolation of the user to read committed",
	"LKSNP":     "begin the transaction when the lock has been acquired, and call InTx first",
	"53100":     "make room on the disk of the server",
	"53300":     "raise max_connections of the server, or lower pool_max_conns",
}

const readOnly = "if this server is a standby, name the primary; else switch off default_transaction_read_only of " +
	"the server, the database or the user; if InTx was called in a transaction that is read only, begin another one"

const noRight = "42501"

const lockTimeout = "55P03"

// apart is the code for programs that make a lock of each place of a group.
const apart = "LKAPT"

const encodings = "set client_encoding of the user to UTF8 or remove it"

const oldSchema = "the tables of the locks are missing or old: run locker migrate, or call postgreslock.Migrate"

const sharedConnection = "behind a PgBouncer that shares connections, set default_query_exec_mode=exec"

// notSent is the error of a request that was not sent.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// standby has the codes with which a server that takes no writes answers requests: a standby has no unlogged tables, no
// place of its own in the log, and no transactions that write.
var standby = map[string]bool{"25006": true, "0A000": true, "55000": true}

// code returns the code of an error that the server has answered, or "". Some proxies send none.
func code(err error) string {
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return answer.Code
	}
	return ""
}

// unknown reports whether a request that failed with err may have taken effect. If the server has answered with an
// error, it has rolled the request back, unless it was shutting down.
func unknown(err error) bool {
	var answer *pgconn.PgError
	switch {
	case err == nil || unsent(err):
		return false
	case errors.As(err, &answer):
		return answer.Severity != "ERROR" && answer.SeverityUnlocalized != "ERROR" ||
			strings.HasPrefix(answer.Code, "57")
	}
	return true
}

// unavailable makes an error of the connection or the server match locker.ErrUnavailable, with advice.
func unavailable(err error) error {
	if err == nil || errors.Is(err, locker.ErrClosed) {
		return err
	}
	if errors.Is(err, locker.ErrInvalid) {
		return err
	}
	if code(err) == apart {
		return fmt.Errorf("%w: %w", locker.ErrForeignKey, err)
	}
	if advice := advice[code(err)]; advice != "" {
		return fmt.Errorf("%w: %w: %s", locker.ErrUnavailable, err, advice)
	}
	return fmt.Errorf("%w: %w", locker.ErrUnavailable, err)
}

// notHeld returns the error for what the server says about the owner: held, gone or taken. Requests are never delivered
// twice, so that a lock that is gone needs no reason.
func notHeld(owner string) error {
	switch owner {
	case "held":
		return nil
	case "taken":
		return &locker.NotHeldError{Reason: locker.LostTakenOver}
	}
	return locker.ErrNotHeld
}

// unsent reports whether err is that of a request that was not sent.
func unsent(err error) bool { return errors.As(err, new(notSent)) || pgconn.SafeToRetry(err) }
