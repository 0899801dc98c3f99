package lockertrace_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/golocker/locker/lockertrace"
)

// Each lease of a step has the hooks of every Trace in the context: its own, or those of the call where a Trace has
// none for it. The Trace that was added last comes first.
func TestTraceOfOneOfSeveralLeases(t *testing.T) {
	var calls []string
	to := func(name string) *lockertrace.Trace {
		return &lockertrace.Trace{Lost: func(error) { calls = append(calls, name) }}
	}
	each := func(name string) *lockertrace.Trace {
		call := to(name)
		call.LeaseOf = func(i int) *lockertrace.Trace {
			if i == 9 {
				return nil
			}
			return to(fmt.Sprint(name, i))
		}
		return call
	}
	for _, tt := range []struct {
		traces []*lockertrace.Trace
		lease  int
		want   []string
	}{
		{nil, 0, nil},
		{[]*lockertrace.Trace{to("call")}, 1, []string{"call"}},
		{[]*lockertrace.Trace{each("step")}, 1, []string{"step1"}},
		{[]*lockertrace.Trace{each("step")}, 9, nil},
		{[]*lockertrace.Trace{each("inner"), to("call"), each("outer")}, 2, []string{"outer2", "call", "inner2"}},
		{[]*lockertrace.Trace{to("call"), each("step")}, 9, []string{"call"}},
	} {
		ctx := context.Background()
		for _, trace := range tt.traces {
			ctx = lockertrace.With(ctx, trace)
		}
		calls = nil
		if trace := lockertrace.From(ctx).Lease(tt.lease); trace != nil && trace.Lost != nil {
			trace.Lost(nil)
		}
		if !slices.Equal(calls, tt.want) {
			t.Errorf("lease %d of %d traces: %q, want %q", tt.lease, len(tt.traces), calls, tt.want)
		}
	}
}
