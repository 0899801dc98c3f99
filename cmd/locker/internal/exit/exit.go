// Package exit has the errors with which the command ends: their exit codes, their texts, and what to do next.
package exit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/golocker/locker"
	"github.com/golocker/locker/redlock"
)

// Exit codes. Most are from sysexits.h; 79 is the first code after those. 126, 127 and 128 plus the number of a signal
// are used as in shells.
const (
	Usage       = 64 // EX_USAGE: the command line is wrong
	Data        = 65 // EX_DATAERR: the key, or the file, holds something that is not a lock
	NoInput     = 66 // EX_NOINPUT: the file of the lease cannot be read
	Unavailable = 69 // EX_UNAVAILABLE: the server or the quorum is down
	Software    = 70 // EX_SOFTWARE: something that should not happen
	OSErr       = 71 // EX_OSERR: the system refused something
	Held        = 75 // EX_TEMPFAIL: somebody else has the lock; try again later
	Config      = 78 // EX_CONFIG: the configuration is wrong
	Lost        = 79 // the lock was lost while the command ran
	NotRunnable = 126
	NotFound    = 127
	Signal      = 128
)

// Error is an error with its exit code. If Err is nil, nothing is printed.
type Error struct {
	Code int
	Err  error
	Next string // what to do about it; may be empty
}

func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// With returns an error with an exit code, and with advice that may be empty.
func With(code int, err error, next string) *Error { return &Error{code, err, next} }

// Diagnosis is the advice for a server that cannot be used. The command replaces it if it finds the cause.
const Diagnosis = "run locker doctor"

// Usagef returns an error about the arguments of a command.
func Usagef(format string, args ...any) error {
	return &Error{Usage, fmt.Errorf(format, args...), "see --help"}
}

// Of adds the exit code and the advice for errors of the library, unless err already has them.
func Of(err error) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e
	}
	switch {
	case rests(err):
		return &Error{Unavailable, err, "wait; or, if the servers are new, run locker bootstrap"}
	case errors.Is(err, locker.ErrInvalid) && strings.Contains(err.Error(), "restart guard"):
		return &Error{Config, err, "guard is the longest TTL and --min-hold of all locks, " +
			"and must be the same everywhere"}
	case errors.Is(err, locker.ErrInvalid):
		return &Error{Usage, err, "choose another key"}
	case errors.Is(err, locker.ErrForeignKey):
		return &Error{Data, err, "choose another key, or another prefix"}
	case errors.Is(err, locker.ErrNoQuorum):
		return &Error{Unavailable, err, "locker doctor examines each node"}
	case errors.Is(err, locker.ErrUnavailable): // before ErrHeld, because the error of a waiter may match both
		return &Error{Unavailable, err, Diagnosis}
	case errors.Is(err, locker.ErrLost), errors.Is(err, locker.ErrNotHeld):
		return &Error{Lost, err, "check what was done in the meantime"}
	case errors.Is(err, locker.ErrHeld):
		return &Error{Held, err, "try again later"}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Unavailable, err, "is the server reachable?"}
	}
	return &Error{Software, err, ""}
}

// rests reports whether err says that servers rest because of their restart guard.
func rests(err error) bool {
	var q *redlock.QuorumError
	if errors.As(err, &q) {
		for _, v := range q.Votes {
			if v.Outcome == redlock.Resting {
				return true
			}
		}
	}
	return errors.As(err, new(*locker.GracePeriodError))
}

// Text returns the text of err in one line, and without the name of the library, which note replaces by the name of the
// program.
func Text(err error) string { return OneLine(strings.TrimPrefix(err.Error(), "locker: ")) }

// OneLine joins the lines of a text. Some clients of stores write a line for each address that they have tried, and the
// same line for each attempt.
func OneLine(text string) string {
	var b strings.Builder
	last := ""
	for line := range strings.Lines(text) {
		switch line = strings.TrimSpace(line); {
		case line == "" || line == last:
			continue
		case strings.HasSuffix(last, ":"):
			b.WriteByte(' ')
		case last != "":
			b.WriteString("; ")
		}
		b.WriteString(line)
		last = line
	}
	return b.String()
}

// Problems returns the texts of the errors that err joins, each in one line.
func Problems(err error) (all []string) {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		var texts []string
		for _, each := range several.Unwrap() {
			all = append(all, Problems(each)...)
			texts = append(texts, each.Error())
		}
		if strings.Join(texts, "\n") == err.Error() {
			return all
		}
	}
	return []string{Text(err)}
}
