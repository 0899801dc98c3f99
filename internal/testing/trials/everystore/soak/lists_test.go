package soak

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/placename"
	"github.com/golocker/locker/internal/core/tick"
	"github.com/golocker/locker/internal/testing/testserver"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// listsEnv is how long lists are tried on each store, such as 3m. Without it, one store is, for seconds.
const listsEnv = "LOCKER_SOAK_LISTS"

// What somebody has for all of a listing is in it, and what was free for all of it is not shown as held, while servers
// fail, and the way of who lists.
func TestLists(t *testing.T) {
	g := newGoal(t, listsEnv, goal{time: 4 * time.Second})
	onStores(t, 1, g.all, func(tr *trial) {
		if tr.forgets { // then locks are missing whose holders rely on them
			return
		}
		locks, _ := tr.connect()
		lists, relays := tr.connect()
		if !tr.canList(lists) {
			return
		}
		w := &watchman{locks: locks, lists: lists, wrong: func(text string) { tr.Error(text) }}
		began := time.Now()
		tr.begin(3, plan{Work: ofLocks})
		ctx, cancel := context.WithCancel(tr.Context())
		var watching sync.WaitGroup
		watching.Go(func() {
			for ctx.Err() == nil {
				cut := time.AfterFunc(rand.N(time.Second), func() {
					for _, r := range relays {
						r.Cut()
					}
				})
				w.turn(ctx, tr.judge)
				cut.Stop()
			}
		})
		tr.disturb(tr.until(g))
		cancel()
		watching.Wait()
		tr.end()
		tr.verdict()
		tr.Logf("%d listings, %d of which failed; %d locks held for all of one, %d free ones, in %v; %v", w.listings,
			w.failed, w.held, w.free, time.Since(began).Round(time.Second), tr.faults)
		if w.listings == w.failed || w.held == 0 || w.free == 0 {
			tr.Error("no list was judged")
		}
	}, deployment.Records...)
}

// connect returns a Client of this process, and its ways to the servers. Its requests meet no mishaps: if one reply in
// 25 is late, a list of so many records does not end between two faults.
func (tr *trial) connect() (*config.Opened, []*testserver.Relay) {
	tr.Helper()
	quiet := *tr.store
	quiet.Mishaps = nil
	url, relays := quiet.Connect(tr.T)
	l, err := config.Open(tr.Context(), url)
	if err != nil {
		tr.Fatal(err)
	}
	tr.Cleanup(func() { _ = l.Close() })
	return l, relays
}

// canList reports whether a store can list its locks. That of the example of records does not implement it.
func (tr *trial) canList(l locker.Locker) bool {
	lister, ok := locker.As[inspect.Lister](l)
	if !ok {
		tr.Fatal("the store is no inspect.Lister")
	}
	for _, err := range lister.List(tr.Context(), "") {
		return !errors.Is(err, errors.ErrUnsupported)
	}
	return true
}

// watchman has some locks of its own, which no other process wants, and lists all. It says what a list must show.
type watchman struct {
	locks, lists locker.Locker
	wrong        func(text string)
	own          [watched]struct {
		lease locker.Lease // nil if it has none
		free  bool         // it was released, and that was answered
	}
	listings, failed, held, free int
}

// watched is how many locks a watchman has: more than a page of each store.
const watched = 130

// watchedKey is the name of a lock, a tick, or a key of permits or of readers and writers.
func watchedKey(i int) string {
	name := fmt.Sprint("watched", i)
	if i%10 == 1 {
		return tick.Name(name, time.UnixMilli(int64(i)*1000))
	}
	return name
}

// kindOf returns what takes a watched key, and tells of it.
func kindOf(l locker.Locker, i int) (from locker.Locker, name string) {
	switch i % 10 {
	case 1:
		return l, "tick"
	case 2:
		return semaphore.New(l, 3), "permit"
	case 3:
		return rwlock.New(l).Shared(), "reader"
	}
	return l, "lock"
}

// turn takes and releases some locks, lists them, and compares.
func (w *watchman) turn(ctx context.Context, j *judge) {
	n := 10
	if w.listings == 0 {
		n = 3 * watched
	}
	for range n {
		w.change(ctx, rand.IntN(watched))
	}
	lister, _ := locker.As[inspect.Lister](w.lists)
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began, shown, all := now(), map[string][]string{}, map[string]bool{}
	w.listings++
	for l, err := range lister.List(call, "") {
		if err != nil {
			w.failed++
			return
		}
		all[l.Key] = true
		key := l.Key
		if of, _, ok := placename.Parse(key); ok {
			key = of
		}
		for _, h := range append(l.Holders, l.Inspection) {
			if h.State == inspect.Held {
				shown[key] = append(shown[key], h.Owner)
			}
		}
	}
	j.lists(listing{began, now(), all})
	for i, o := range w.own {
		owners := shown[watchedKey(i)]
		_, kind := kindOf(w.locks, i)
		switch {
		case o.lease != nil && o.lease.Err() == nil && time.Now().Before(o.lease.Until()):
			w.held++
			if !slices.ContainsFunc(owners, func(owner string) bool { return strings.HasPrefix(o.lease.Token(), owner) }) {
				w.wrong(fmt.Sprintf("%s, a %s, was held all the time, and the list of %d shows %q", watchedKey(i), kind,
					len(all), owners))
			}
		case o.free:
			if w.free++; len(owners) > 0 {
				w.wrong(fmt.Sprintf("%s, a %s, was free all the time, and the list shows it as that of %q", watchedKey(i), kind,
					owners))
			}
		}
	}
}

// change releases a lock, or takes it.
func (w *watchman) change(ctx context.Context, i int) {
	o := &w.own[i]
	call, cancel := context.WithTimeout(ctx, ttl)
	defer cancel()
	if lease := o.lease; lease != nil {
		o.lease, o.free = nil, lease.Unlock(call) == nil
		return
	}
	o.free = false                                    // an attempt that fails may have taken it
	if job, at, ok := tick.Parse(watchedKey(i)); ok { // as package once does, but to be released at once
		until := time.Now().Add(time.Hour)
		call = tick.With(call, &tick.Tick{Job: job, At: at, Until: until, Drop: until, Now: time.Now})
	}
	from, _ := kindOf(w.locks, i)
	if lease, err := from.TryLock(call, watchedKey(i), locker.TTL(10*time.Second)); err == nil {
		o.lease = lease
	}
}

// flawedLister spoils the n-th lock of each listing.
type flawedLister struct {
	locker.Locker
	spoil func(n int, l *inspect.Listed) (keep bool)
}

func (f flawedLister) Unwrap() locker.Locker { return f.Locker }

func (f flawedLister) List(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	return func(yield func(inspect.Listed, error) bool) {
		n := -1
		lister, _ := locker.As[inspect.Lister](f.Locker)
		for l, err := range lister.List(ctx, prefix) {
			if n++; err != nil && !yield(l, err) || err == nil && f.spoil(n, &l) && !yield(l, nil) {
				return
			}
		}
	}
}

// Who watches finds lists that lack locks, show free ones, or other owners.
func TestBrokenListsAreFound(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(n int, l *inspect.Listed) bool
		found string
	}{
		"sound":                   {func(int, *inspect.Listed) bool { return true }, ""},
		"one lock is left out":    {func(n int, _ *inspect.Listed) bool { return n != 50 }, "was held all the time"},
		"the second page is lost": {func(n int, _ *inspect.Listed) bool { return n < 100 }, "was held all the time"},
		"permits are left out": {func(_ int, l *inspect.Listed) bool {
			return !strings.HasSuffix(l.Key, "#permits")
		}, "a permit, was held all the time"},
		"readers are left out": {func(_ int, l *inspect.Listed) bool {
			return l.Kind == ""
		}, "a reader, was held all the time"},
		"ticks are left out": {func(_ int, l *inspect.Listed) bool {
			return !strings.Contains(l.Key, "@")
		}, "a tick, was held all the time"},
		"the owner is another one": {func(_ int, l *inspect.Listed) bool {
			l.Owner += "x"
			return true
		}, "was held all the time"},
		"a free lock is shown": {func(n int, l *inspect.Listed) bool {
			if n == 0 {
				l.Key = watchedKey(0)
			}
			return true
		}, "a lock, was free all the time"},
		"a free permit is shown": {func(n int, l *inspect.Listed) bool {
			if n == 0 {
				l.Key = "{" + watchedKey(2) + "}#permits"
			}
			return true
		}, "a permit, was free all the time"},
	} {
		t.Run(name, func(t *testing.T) {
			var found []string
			c := memory.New()
			defer c.Close()
			w := &watchman{locks: c, lists: flawedLister{c, tt.spoil}}
			w.wrong = func(text string) { found = append(found, text) }
			for i := range watched {
				w.change(t.Context(), i)
			}
			for _, i := range []int{0, 2} { // which are free now
				w.change(t.Context(), i)
			}
			w.listings = 1
			for range 3 {
				w.turn(t.Context(), newJudge())
				for _, i := range []int{0, 2} {
					if w.own[i].lease != nil {
						w.change(t.Context(), i)
					}
				}
			}
			all := strings.Join(found, "\n")
			if tt.found == "" && all != "" || !strings.Contains(all, tt.found) {
				t.Errorf("found %q, expected: %q", all, tt.found)
			}
		})
	}
}

// The judge finds a list without a lock that a process relied on before and after.
func TestJudgeFindsPlantedFaultsOfLists(t *testing.T) {
	for name, tt := range map[string]struct {
		of    listing
		found string
	}{
		"held all the time, and missing": {listing{21, 29, nil}, "lacks"},
		"held all the time, and there":   {listing{21, 29, map[string]bool{"k": true}}, ""},
		"acquired meanwhile":             {listing{19, 29, nil}, ""},
		"released meanwhile":             {listing{21, 31, nil}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJudge()
			j.add(leased(lock, "1", 5, 10, 20, 30))
			j.lists(tt.of)
			j.expect(t, tt.found)
		})
	}
}
