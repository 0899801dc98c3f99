package postgres

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/golocker/locker"
)

// advice says what to do about errors of the server, by their code.
var advice = map[string]string{
	"3F000": oldSchema, "42883": oldSchema, "42P01": oldSchema,
	"26000": sharedConnection, "42P05": sharedConnection,
	"42501": "grant the user the rights that docs/backends/postgres.md lists",
	"25006": "if this server is a standby, name the primary, or add target_session_attrs=read-write; " +
		"if the transaction is read only, begin another one",
	"55P03": "another request for this lock is still under way",
	"LKISO": "set default_transaction_isolation of the user to read committed",
	"LKSNP": "begin the transaction when the lock has been acquired, and call InTx first",
	"LKPRX": "connect advisory locks to the server itself, and not through PgBouncer or another proxy",
	"LKVER": "use PostgreSQL 14 or newer, or locks in rows, as those of postgres.New",
	"53100": "make room on the disk of the server",
	"53300": "raise max_connections of the server, or lower pool_max_conns",
}

const oldSchema = "the tables of the locks are missing or old: run locker migrate, or call postgres.Migrate"

const sharedConnection = "behind a PgBouncer that shares connections, set default_query_exec_mode=exec"

// notSent is the error of a request that was not sent.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// unknown reports whether a request that failed with err may have taken effect. If the server has answered with an
// error, it has rolled the request back, unless it was shutting down.
func unknown(err error) bool {
	var answer *pgconn.PgError
	switch {
	case err == nil || unsent(err):
		return false
	case errors.As(err, &answer):
		return answer.Severity != "ERROR" && answer.SeverityUnlocalized != "ERROR" || answer.Code[:2] == "57"
	}
	return true
}

// unavailable makes an error of the connection or the server match locker.ErrUnavailable, with advice.
func unavailable(err error) error {
	if err == nil || errors.Is(err, locker.ErrClosed) {
		return err
	}
	var answer *pgconn.PgError
	if errors.As(err, &answer) && advice[answer.Code] != "" {
		return fmt.Errorf("%w: %w: %s", locker.ErrUnavailable, err, advice[answer.Code])
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
