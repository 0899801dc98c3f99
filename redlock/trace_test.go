package redlock

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
)

// A Trace hears of each node once per operation, as soon as it is decided.
func TestVotesAreTraced(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		l := s.client()
		s.set(everybody, 0, "hung")
		s.set(everybody, 1, "dead")
		var mu sync.Mutex
		votes := map[string][]lockertrace.Vote{}
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Voted: func(v lockertrace.Vote) {
			mu.Lock()
			defer mu.Unlock()
			votes[v.Op+" "+v.Node] = append(votes[v.Op+" "+v.Node], v)
		}})
		s.nodes[4].Execute(dead("held"))
		lease, err := l.Lock(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := lease.Extend(ctx); err != nil {
			t.Error(err)
		}
		if err := lease.Unlock(ctx); err != nil {
			t.Error(err)
		}
		if _, err := l.TryLock(ctx, "held"); err == nil {
			t.Error("three of five, one of which is held")
		}
		mu.Lock()
		for _, op := range []string{"acquire", "extend", "release"} {
			for i, name := range []string{"a", "b", "c", "d", "e"} {
				got := votes[op+" "+name]
				want := 1
				switch {
				case op == "acquire":
					want = 2
				case i == 1: // was not part of the lease
					want = 0
				case i == 0: // may be
					want = len(got)
				}
				if len(got) != want {
					t.Errorf("%s by %s: %+v", op, name, got)
				}
				for k, v := range got {
					if i < 2 && !errors.Is(v.Err, locker.ErrUnavailable) ||
						i > 1 && v.Err != nil && (i != 4 || k != 1 || !errors.Is(v.Err, locker.ErrHeld)) {
						t.Errorf("%s by %s: %+v", op, name, v)
					}
				}
			}
		}
		clear(votes)
		mu.Unlock()
		for i := range s.nodes {
			s.set(everybody, i, "")
		}
		time.Sleep(time.Minute)
		s.close()
		for of, got := range votes {
			if of != "acquire a" || len(got) != 2 {
				t.Errorf("after the end: %s: %+v", of, got)
			}
			for _, v := range got {
				if !v.Late || v.Pending || !errors.Is(v.Err, locker.ErrUnavailable) {
					t.Errorf("after the end: %s: %+v", of, v)
				}
			}
		}
	})
}

// A node that is behind the others is not one that fails: its votes come after the decision.
func TestVotesOfASlowNodeComeLate(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newTestbed(t)
		l := s.client()
		s.event = func(_, node int, _ []drivers.Command, executed bool) {
			if node == 4 && !executed {
				time.Sleep(10 * time.Millisecond)
			}
		}
		var mu sync.Mutex
		var got []string
		ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Voted: func(v lockertrace.Vote) {
			if v.Node != "e" {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprintf("%s %v pending=%t late=%t: %v", v.Op, v.Duration.Round(time.Millisecond), v.Pending,
				v.Late, v.Err))
		}})
		lease, err := l.Lock(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := lease.Extend(ctx); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := lease.Unlock(ctx); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		s.close()
		var want []string
		for _, op := range []string{"acquire", "extend", "release"} {
			want = append(want, op+" 0s pending=true late=false: "+errSilent.Error(), op+" 10ms pending=false late=true: <nil>")
		}
		if !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	})
}
