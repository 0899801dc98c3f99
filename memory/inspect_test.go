package memory_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// A watcher is told of each change of the owner of its key, and of nothing after it has stopped.
func TestWatch(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b := memory.NewBackend()
		told := 0
		stop, err := b.Watch("k", func() { told++ })
		if err != nil {
			t.Fatal(err)
		}
		want := func(what string, n int) {
			t.Helper()
			if told != n {
				t.Errorf("%s: told %d times, want %d", what, told, n)
			}
		}
		held(t, b, "a")
		want("an acquisition", 1)
		if err := b.Extend(t.Context(), request("k", "a")); err != nil {
			t.Error(err)
		}
		if _, err := b.Acquire(t.Context(), request("other", "a")); err != nil {
			t.Error(err)
		}
		want("an extension, and another key", 1)
		second := queue(t.Context(), b, request("k", "b"))
		before := told
		release(t, b, "a")
		soon(t, "b", second, nil)
		if told == before {
			t.Error("not told of a hand-over")
		}
		before = told
		if _, err := b.ForceRelease(t.Context(), "k", ""); err != nil {
			t.Error(err)
		}
		if told == before {
			t.Error("not told of a forced release")
		}
		stop()
		before = told
		held(t, b, "c")
		want("after stop", before)
	})
}

// A Client whose backend tells of nothing says so.
func TestWatchIsOptional(t *testing.T) {
	c := locker.NewClient(struct{ backend.Backend }{memory.NewBackend()})
	defer c.Close()
	var w inspect.Watcher = c
	if _, err := w.Watch("k", func() {}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Watch: %v", err)
	}
}

// Each owner of a group is listed, with what it has.
func TestListShowsEachOwnerOfAGroup(t *testing.T) {
	b := memory.NewBackend()
	acquire := func(key, token string, g backend.Group) {
		req := backend.Request{Key: key, Token: token, TTL: time.Minute, Group: &g}
		if _, err := b.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	acquire("{k}#permits", "first owner", backend.Group{N: 3, Weight: 2})
	acquire("{k}#permits", "second owner", backend.Group{N: 3, Weight: 1})
	acquire("{k}#rw", "third owner", backend.Group{Kind: backend.Shared})
	acquire("{k}#rw", "fourth owner", backend.Group{Kind: backend.Upgradeable})
	acquire("{l}#rw", "fifth owner", backend.Group{Kind: backend.Exclusive})
	seen := map[string]string{}
	for l, err := range b.List(t.Context(), "{") {
		if err != nil || l.State != inspect.Held {
			t.Error(l, err)
		}
		for _, holder := range l.Holders {
			seen[holder.Owner] = fmt.Sprint(l.Key, holder.Permits)
		}
	}
	if want := map[string]string{
		"first ow": "{k}#permits[0 1]", "second o": "{k}#permits[2]", "third ow": "{k}#rw[]",
		"fourth o": "{k}#rw[]", "fifth ow": "{l}#rw[]",
	}; !maps.Equal(seen, want) {
		t.Errorf("seen %q, want %q", seen, want)
	}
}
