package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/doctor"
	"github.com/golocker/locker/drivers"
)

// Exit codes. Most are from sysexits.h; 79 is the first code after those. 126, 127 and 128 plus the number of a signal
// are used as in shells.
const (
	exitUsage       = 64 // EX_USAGE: the command line is wrong
	exitData        = 65 // EX_DATAERR: the key holds something that is not a lock
	exitUnavailable = 69 // EX_UNAVAILABLE: the server or the quorum is down
	exitSoftware    = 70 // EX_SOFTWARE: something that should not happen
	exitOSErr       = 71 // EX_OSERR: the system refused something
	exitHeld        = 75 // EX_TEMPFAIL: somebody else has the lock; try again later
	exitConfig      = 78 // EX_CONFIG: the configuration is wrong
	exitLost        = 79 // the lock was lost while the command ran
	exitNotRunnable = 126
	exitNotFound    = 127
	exitSignal      = 128
)

// exitError is an error with its exit code. If err is nil, nothing is printed.
type exitError struct {
	code int
	err  error
	next string // what to do about it; may be empty
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// nextDiagnosis is the advice for a server that cannot be used. [app.diagnosis] replaces it if it finds the cause.
const nextDiagnosis = "run locker doctor"

// usageError returns an error about the arguments of a command.
func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...), "see --help"}
}

// withExit adds the exit code and the advice for errors of the library, unless err already has them.
func withExit(err error) *exitError {
	if e := (*exitError)(nil); errors.As(err, &e) {
		return e
	}
	switch {
	case rests(err):
		return &exitError{exitUnavailable, err, "wait; or, if the servers are new, run locker bootstrap"}
	case errors.Is(err, locker.ErrInvalid) && strings.Contains(err.Error(), "restart guard"):
		return &exitError{exitConfig, err, "guard is the longest TTL and --min-hold of all locks, " +
			"and must be the same everywhere"}
	case errors.Is(err, locker.ErrInvalid):
		return &exitError{exitUsage, err, "choose another key"}
	case errors.Is(err, locker.ErrForeignKey):
		return &exitError{exitData, err, "choose another key, or another prefix"}
	case errors.Is(err, locker.ErrNoQuorum):
		return &exitError{exitUnavailable, err, "locker doctor examines each node"}
	case errors.Is(err, locker.ErrUnavailable): // before ErrHeld, because the error of a waiter may match both
		return &exitError{exitUnavailable, err, nextDiagnosis}
	case errors.Is(err, locker.ErrLost), errors.Is(err, locker.ErrNotHeld):
		return &exitError{exitLost, err, "check what was done in the meantime"}
	case errors.Is(err, locker.ErrHeld):
		return &exitError{exitHeld, err, "try again later"}
	case errors.Is(err, context.DeadlineExceeded):
		return &exitError{exitUnavailable, err, "is the server reachable?"}
	}
	return &exitError{exitSoftware, err, ""}
}

// explain returns the text of e, a line for each error that it joins, and what to do next. It may contact the server,
// for two seconds at most.
func (a *app) explain(e *exitError) (text, next string) {
	text, next = strings.Join(problems(e.err), "\n"), e.next
	var r drivers.ServerError
	if errors.As(e.err, &r) {
		text = strings.ReplaceAll(text, r.Error(), doctor.Short(r))
	}
	if next == nextDiagnosis {
		next = a.diagnosis(e.err)
	}
	return text, next
}

// report prints err unless it is nil, and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	e := withExit(err)
	if e.err == nil || a.quiet && e.code == exitHeld { // with --quiet, a held lock is not reported
		return e.code
	}
	text, next := a.explain(e)
	if a.json {
		_ = json.NewEncoder(a.stderr).Encode(struct {
			Error string `json:"error"`
			Next  string `json:"next,omitempty"`
			Code  int    `json:"code"`
		}{text, next, e.code})
		return e.code
	}
	s := a.style(a.stderr)
	if n := strings.Count(text, "\n"); n > 0 { // such as all mistakes of a configuration
		fmt.Fprintf(a.stderr, "%s\n", text)
		text = fmt.Sprintf("%d problems", n+1)
	}
	if next != "" {
		text += ": " + next
	}
	fmt.Fprintf(a.stderr, "%s %s\n", s.bad("locker:"), text)
	return e.code
}
