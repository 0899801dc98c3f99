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

// Exit codes. They are those of sysexits.h where that has one that fits; 79 is the first that it leaves free, and 126,
// 127 and 128 plus the number of a signal are what shells do.
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

// exitError is an error with the exit code it leads to. err may be nil: then nothing is printed, because it was said before,
// or there is nothing to say.
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

// nextDiagnosis is the next step of an error about a server that cannot be used: [app.diagnosis] finds out what it is.
const nextDiagnosis = "locker doctor looks into it"

// usageError is for what a command itself finds wrong with its arguments.
func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...), "see --help"}
}

// withExit gives err the code and the next step that the library's errors call for, if it has none yet.
func withExit(err error) *exitError {
	if e := (*exitError)(nil); errors.As(err, &e) {
		return e
	}
	switch {
	case errors.Is(err, locker.ErrInvalid):
		return &exitError{exitUsage, err, "choose another key"}
	case errors.Is(err, locker.ErrForeignKey):
		return &exitError{exitData, err, "choose another key, or another prefix"}
	case errors.Is(err, locker.ErrNoQuorum):
		return &exitError{exitUnavailable, err, "locker doctor looks at each of the nodes"}
	case errors.Is(err, locker.ErrUnavailable): // before ErrHeld: who waited may have seen both
		return &exitError{exitUnavailable, err, nextDiagnosis}
	case errors.Is(err, locker.ErrLost), errors.Is(err, locker.ErrNotHeld):
		return &exitError{exitLost, err, "check what was done meanwhile"}
	case errors.Is(err, locker.ErrHeld):
		return &exitError{exitHeld, err, "try again later"}
	case errors.Is(err, context.DeadlineExceeded):
		return &exitError{exitUnavailable, err, "is the server reachable?"}
	}
	return &exitError{exitSoftware, err, ""}
}

// report prints err, if any, and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	e := withExit(err)
	if e.err == nil || a.quiet && e.code == exitHeld { // what --wait 0 is for is no news
		return e.code
	}
	text, next := told(e.err), e.next
	var r drivers.ServerError
	if errors.As(e.err, &r) {
		text = strings.ReplaceAll(text, r.Error(), doctor.Short(r))
	}
	if next == nextDiagnosis {
		next = a.diagnosis(e.err)
	}
	if a.json {
		_ = json.NewEncoder(a.stderr).Encode(struct {
			Error string `json:"error"`
			Next  string `json:"next,omitempty"`
			Code  int    `json:"code"`
		}{text, next, e.code})
		return e.code
	}
	s := a.style(a.stderr)
	if n := strings.Count(text, "\n"); n > 0 { // all that is wrong with a configuration at once
		fmt.Fprintf(a.stderr, "%s\n", text)
		text = fmt.Sprintf("%d problems", n+1)
	}
	if next != "" {
		text += ": " + next
	}
	fmt.Fprintf(a.stderr, "%s %s\n", s.bad("locker:"), text)
	return e.code
}
