package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/virtual"
)

// shape builds a reply of any shape from bytes: integers, strings, refusals, nil, arrays of these, and types that no
// driver may return.
func shape(data []byte, depth int) (drivers.Reply, []byte) {
	if len(data) == 0 {
		return nil, nil
	}
	kind, data := data[0], data[1:]
	next := func() byte {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return b
	}
	switch kind % 8 {
	case 0, 1: // integers, mostly the codes of the scripts
		n := int64(int8(next()))
		if n%7 == 6 {
			n <<= next() % 64
		}
		return n, data
	case 2:
		return shapeTexts[int(next())%len(shapeTexts)], data
	case 3:
		return drivers.ServerError(shapeTexts[int(next())%len(shapeTexts)]), data
	case 4:
		return nil, data
	case 5:
		return []any{1, 2.5, true, []byte("1"), uint64(1), map[string]any{"1": 1}, errors.New("1"),
			[]int64{1, 7}}[next()%8], data
	default:
		r := []drivers.Reply{}
		for n := next() % 7; n > 0 && depth < 4; n-- {
			var e drivers.Reply
			e, data = shape(data, depth+1)
			r = append(r, e)
		}
		return r, data
	}
}

var shapeTexts = []string{
	"", "1", "OK", "owner", "NOSCRIPT No matching script", "READONLY", "OOM command not allowed", "ERR", "MOVED 1 a:1",
	"BUSY Redis is busy", "NOPERM", " ", "\x00", "noauth", "0", "1-2", "0,2", "2-1",
}

// inDoubt are codes by which a script may have been stopped in its middle, or that say nothing.
var inDoubt = map[string]bool{"": true, "ERR": true, "NOPERM": true, "OK": true, "1": true, "noauth": true,
	"\x00": true, "0": true, "1-2": true, "0,2": true, "2-1": true}

// is reports whether a reply is an array that begins with these integers and has the length.
func is(r drivers.Reply, length int, begin ...int64) bool {
	a, ok := r.([]drivers.Reply)
	if !ok || len(a) != length {
		return false
	}
	for i, n := range begin {
		if a[i] != n {
			return false
		}
	}
	return true
}

func isCounter(r drivers.Reply) bool {
	n, _ := r.(int64)
	return n > 0
}

// Whatever a server, a proxy or a driver answers: nobody holds a lock unless the reply is a grant to the letter,
// nothing is taken for "held" or "not held" but what the scripts say so, what is in doubt is undone, and nothing
// panics.
func FuzzReplies(f *testing.F) {
	for _, seed := range []string{
		"\x06\x02\x00\x01\x00\x07", "\x06\x04\x00\x00\x00\x05\x00\x06\x02\x03", "\x06\x01\x00\xff", "\x06\x01\x00\xfe",
		"\x06\x03\x00\x01\x00\x07\x00\x05", "\x06\x05\x00\x00\x00\x05\x00\x01\x00\x01\x00\x06", "\x00\x01", "\x00\x09",
		"\x03\x04", "\x03\x05", "\x04", "\x05\x07", "\x06\x02\x00\x01\x05\x00", "\x06\x02\x00\x01\x00\x00",
		"\x06\x02\x00\x01\x00\x80", "\x06\x01\x06\x02",
		"\x06\x03\x00\x01\x00\x00\x00\x05", "\x06\x03\x00\x01\x00\x80\x00\x05", "\x03\x07", "\x03\x0a", "\x00\x00",
		"\x00\x02", "\x00\x03", "\x00\x0b",
		"\x06\x04\x00\x01\x00\x07\x00\x05\x00\x7f", "\x06\x04\x00\x01\x00\x07\x00\x05\x00\x00",
		"\x06\x05\x00\x02\x00\x05\x00\x00\x00\x01\x00\x06", "\x06\x02\x00\x03\x00\x05",
		"\x06\x03\x00\x03\x00\x05\x02\x0f", "\x06\x04\x00\x01\x00\x05\x00\x07\x02\x10",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, _ := shape(data, 0)
		n1 := &Node{name: "n1"}
		vote := n1.vote(r, nil)
		switch {
		case vote.Granted != isCounter(r), vote.Granted != (vote.Err == nil):
			t.Errorf("vote on %#v: %+v", r, vote)
		case errors.Is(vote.Err, locker.ErrHeld) && !is(r, 5, 0):
			t.Errorf("held by %#v", r)
		}
		refused, isRefusal := r.(drivers.ServerError)
		if !vote.Doubtful && isRefusal && inDoubt[refused.Code()] {
			t.Errorf("%q is taken for a refusal", refused)
		}

		n, isInt := r.(int64)
		n &^= 8 | 16 // that it is unfinished, and that others wait
		if err := n1.owned(r, nil); (err == nil) != (isInt && (n == 1 || n == 2)) ||
			errors.Is(err, locker.ErrNotHeld) != (isInt && (n == 0 || n == 3 || n == 4)) {
			t.Errorf("owned by %#v: %v", r, err)
		}

		p, err := decodePosition(r, nil)
		if p.Status == script.Granted && (err != nil || p.Counter == 0 || p.Counter > math.MaxInt64 ||
			!isCounter(r) && !is(r, 3, 1) && !is(r, 4, 1) && !is(r, 3, 3)) || p.Left < 0 || p.Fences < 0 {
			t.Errorf("place by %#v: %+v, %v", r, p, err)
		}
		s, err := (&Turn{}).decode(r)
		// With the label of the owner, and for a waiter that has to poll.
		mine := is(r, 2, 1) || is(r, 3, 1) || is(r, 2, 3) || is(r, 3, 3)
		if err == nil && s.Mine != mine || s.Left < 0 || s.Again < 0 {
			t.Errorf("standing by %#v: %+v, %v", r, s, err)
		}
	})
}

// The same through a whole Node: every call returns, with nil only for what the fuzzed reply grants.
func FuzzNode(f *testing.F) {
	for _, seed := range []string{"\x06\x02\x00\x01\x00\x07", "\x06\x03\x00\x01\x00\x07\x00\x7f", "\x00\x01", "\x03\x04",
		"\x04", "\x06\x05\x00\x00\x00\x05\x00\x01\x00\x01\x00\x06",
		"\x06\x03\x00\x03\x00\x05\x02\x0f", "\x06\x04\x00\x01\x00\x05\x00\x07\x02\x10"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, _ := shape(data, 0)
		virtual.Test(t, func(t *testing.T) {
			d := &fake{answer: all(r)}
			n := New(d, Options{Name: "n1", Prefix: "p:", Timeout: timeout})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			req := request("o")
			if g, err := n.Acquire(ctx, req); err == nil && (g.Fence == 0 || g.Permits != nil) {
				t.Errorf("%#v granted without a token", r)
			}
			two := request("two")
			two.Group = &backend.Group{N: 3, Weight: 2}
			for _, acquire := range []func() (backend.Grant, error){
				func() (backend.Grant, error) { return n.Acquire(ctx, two) },
				func() (backend.Grant, error) { return n.Queue(ctx, two, waiting(ctx)) },
			} {
				if g, err := acquire(); err == nil && (g.Fence == 0 || len(g.Permits) != 2) {
					t.Errorf("%#v granted %+v", r, g)
				}
			}
			if _, err := n.Queue(ctx, req, waiting(ctx)); err == nil && !is(r, 3, 1) && !is(r, 4, 1) && !isCounter(r) {
				t.Errorf("%#v granted to a waiter", r)
			}
			for what, err := range map[string]error{"extended": n.Extend(ctx, req), "released": n.Release(ctx, req)} {
				if _, isInt := r.(int64); err == nil && !isInt {
					t.Errorf("%#v %s", r, what)
				}
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

// Errors of drivers are sorted without looking at more than they say: what may have been executed is in doubt.
func FuzzErrors(f *testing.F) {
	f.Add("NOSCRIPT x", true, uint8(0))
	f.Add("ERR", false, uint8(1))
	f.Add("connection refused", true, uint8(2))
	f.Fuzz(func(t *testing.T, text string, unsent bool, wrap uint8) {
		err := []error{
			errors.New(text), drivers.ServerError(text), context.Canceled, context.DeadlineExceeded,
			fmt.Errorf("%s: %w", text, locker.ErrUnavailable),
		}[int(wrap)%5]
		_, isReply := err.(drivers.ServerError)
		if unsent {
			err = drivers.NotSent(err)
		}
		if isNotSent(err) != unsent {
			t.Errorf("%v: not sent is %v, want %v", err, isNotSent(err), unsent)
		}
		if known(err) != (isReply && script.IsRefusal(drivers.ServerError(text))) {
			t.Errorf("%v: known is %v", err, known(err))
		}
		n := &Node{name: "n1"}
		fault := n.fault(err)
		if !errors.Is(fault, locker.ErrUnavailable) || errors.Is(fault, locker.ErrHeld) ||
			errors.Is(fault, locker.ErrNotHeld) {
			t.Errorf("%v became %v", err, fault)
		}
		if wrap%5 < 4 && (errors.Is(fault, context.Canceled) || errors.Is(fault, context.DeadlineExceeded)) {
			t.Errorf("%v speaks for the caller's context", fault)
		}
	})
}
