package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/golocker/locker/cmd/locker/internal/doctor"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/servers"
)

// explain returns the text of e, a line for each error that it joins, and what to do next. It may contact the server,
// for two seconds at most.
func (a *app) explain(e *exit.Error) (text, next string) {
	text, next = strings.Join(exit.Problems(e.Err), "\n"), e.Next
	var r drivers.ServerError
	if errors.As(e.Err, &r) {
		text = strings.ReplaceAll(text, r.Error(), doctor.Short(r))
	}
	if next == exit.Diagnosis {
		next = a.diagnosis(e.Err)
	}
	return text, next
}

// report prints err unless it is nil, and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	e := exit.Of(err)
	if e.Err == nil || a.quiet && e.Code == exit.Held { // with --quiet, a held lock is not reported
		return e.Code
	}
	text, next := a.explain(e)
	if a.json {
		_ = json.NewEncoder(a.stderr).Encode(struct {
			Error string `json:"error"`
			Next  string `json:"next,omitempty"`
			Code  int    `json:"code"`
		}{text, next, e.Code})
		return e.Code
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
	return e.Code
}

// diagnosis returns advice about a server that cannot be used. It may contact the server, for two seconds at most.
func (a *app) diagnosis(err error) string {
	if a.used == nil {
		return exit.Diagnosis
	}
	ctx := context.Background()
	d, openErr := servers.Of(ctx, a.used)
	if openErr != nil || len(d.Servers) != 1 {
		return exit.Diagnosis
	}
	defer func() { _ = d.Close() }()
	s := d.Servers[0]
	if c, ok := doctor.OfSentinel(s.Dial, err); ok {
		return c.Fix
	}
	var e drivers.ServerError
	if errors.As(err, &e) {
		return doctor.Refusal(e, s.Username).Fix
	}
	if c, ok := doctor.ConnectError(s.Dial, err); ok {
		return c.Fix
	}
	if c, ok := doctor.Probe(ctx, s.Dial, s.Username); ok {
		return c.Text + ": " + c.Fix
	}
	return "is the server up, and does the network let it answer? " + exit.Diagnosis
}

// refused reports whether a server has answered with an error.
func refused(err error) bool {
	ok := errors.As(err, new(drivers.ServerError))
	return ok
}
