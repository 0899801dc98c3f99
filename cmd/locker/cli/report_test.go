package cli

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
)

// An error is one problem, however many lines its text has. Errors that are joined are several.
func TestReportCountsErrorsAndNotLines(t *testing.T) {
	one := errors.New("cannot connect to `db`:\n\th1: refused\n\th1: refused\n\th2: refused")
	const text = "cannot connect to `db`: h1: refused; h2: refused"
	two := errors.Join(one, fmt.Errorf("config: ttl: %w", errors.New("wrong")))
	for want, err := range map[string]error{
		"locker: " + text + "\n": one,
		"locker: lock \"k\": lock store unavailable: " + text + ": run locker doctor\n": &locker.Error{
			Op: "lock", Key: "k", Err: fmt.Errorf("%w: %w", locker.ErrUnavailable, one)},
		text + "\nconfig: ttl: wrong\nlocker: 2 problems\n": two,
		text + "\nconfig: ttl: wrong\nlocker: 2 problems: see --help\n": exit.With(exit.Config, errors.Join(nil, two),
			"see --help"),
		"locker: first: " + text + "; config: ttl: wrong\n": fmt.Errorf("first: %w", two),
	} {
		var out bytes.Buffer
		(&app{stderr: &out}).report(err)
		assert.Equal(t, want, out.String())
	}
}
