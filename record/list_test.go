package record_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/recordstore"
	ticks "github.com/golocker/locker/once"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// list returns what is listed, by key. Those whose keys are not known are counted.
func list(t *testing.T, l inspect.Lister, prefix string) (all map[string]inspect.Listed, cut int) {
	t.Helper()
	all = make(map[string]inspect.Listed)
	for found, err := range l.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		if found.Cut {
			cut++
			continue
		}
		all[found.Key] = found
	}
	return all, cut
}

// Permits, readers, writers and ticks are listed under the names that Inspect takes, whatever the prefix, and nothing
// that is free.
func TestListsShowWhatRecordsHave(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		l := client(t, s, record.Prefix("app:"))
		lock := func(l locker.Locker, key string, opts ...locker.Option) locker.Lease {
			t.Helper()
			lease, err := l.Lock(t.Context(), key, append(opts, locker.TTL(time.Hour), locker.NoRenewal())...)
			if err != nil {
				t.Fatal(err)
			}
			return lease
		}
		permits := semaphore.New(l, 70)
		for range 66 { // of two records
			lock(permits, "k")
		}
		lock(rwlock.New(l).Shared(), "k")
		lock(rwlock.New(l).Exclusive(), "other")
		lock(l, "k")
		lock(client(t, s), "of another prefix")
		long := "k" + strings.Repeat("ä", 100)
		lock(l, long)
		if err := lock(l, "k, freed").Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Put("=61pp", "no name of a record")
		s.Put("app=3ak2", "not a lock")
		s.Put("app=3ak3=t", `{"locker":2,"nonce":"x","last":1}`)
		at := nextTick()
		time.Sleep(time.Until(at))
		if _, err := ticks.Claim(t.Context(), l, "k", at); err != nil {
			t.Fatal(err)
		}
		tick := "k@" + at.UTC().Format("2006-01-02T15:04:05Z")

		count := func(all map[string]inspect.Listed, front string) (n int) {
			for key := range all {
				if strings.HasPrefix(key, front) {
					n++
				}
			}
			return n
		}
		all, cut := list(t, l, "")
		if cut != 1 || all["k"].State != inspect.Held || all[tick].State != inspect.Kept || len(all) != 66+1+64+2 ||
			count(all, "{k}#rw") != 1 || count(all, "{other}#rw") != 64 {
			t.Errorf("%d locks, %d of the semaphore, %d cut: %v", len(all), count(all, "{k}#"), cut, all)
		}
		for key, found := range all {
			if i, err := l.Inspect(t.Context(), key); err != nil || i.Owner != found.Owner || i.State != found.State {
				t.Errorf("%q: %+v is listed, and is %+v, %v", key, found, i, err)
			}
		}
		for prefix, want := range map[string]int{
			"k": 2, "k@": 1, "k@20": 1, tick: 1, "k@30": 0, "{k": 67, "{k}#": 67, "{k}#6": count(all, "{k}#6"), "{k}#rw": 1,
			"{other}#rw6": 5, "{other}#rwg": 0, "o": 0, "{other}": 64, "k,": 0,
		} {
			if found, _ := list(t, l, prefix); len(found) != want {
				t.Errorf("%q: %d locks, want %d: %v", prefix, len(found), want, found)
			}
		}
		time.Sleep(2 * time.Hour)
		if all, cut := list(t, client(t, s, record.Prefix("app:")), ""); len(all) == 0 || cut != 1 {
			t.Errorf("without a clock, and for one who looks for the first time: %d locks", len(all))
		}
	})
}

// What is read of a page is remembered by nobody: a process that lists a million locks could not watch any.
func TestListsLeaveRoomForWhatIsWatched(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b, other := backendOf(t, s), backendOf(t, s)
		for n := range 300 {
			s.Put(fmt.Sprint("k", n), record.Text("owner", 1, 1, time.Minute))
		}
		if all, _ := list(t, b, "k"); len(all) != 300 || record.Sightings(b) != 0 {
			t.Errorf("%d locks, and %d records are remembered", len(all), record.Sightings(b))
		}
		if i, err := b.Inspect(t.Context(), "k1"); err != nil || i.State != inspect.Held {
			t.Fatalf("%+v, %v", i, err)
		}
		time.Sleep(30 * time.Second)
		all, _ := list(t, b, "k")
		if seen, unseen := all["k1"].Seen, all["k2"].Seen; seen < 30*time.Second || unseen <= 0 || unseen > time.Second {
			t.Errorf("known for %v and %v", seen, unseen)
		}
		time.Sleep(time.Minute)
		if all, _ = list(t, b, "k1"); all["k1"].Key != "" || len(all) != 110 {
			t.Errorf("%d locks, also the one whose time is over: %+v", len(all), all["k1"])
		}
		if all, _ = list(t, other, "k1"); all["k1"].State != inspect.Held {
			t.Errorf("for one who has not watched it: %+v", all["k1"])
		}
	})
}

// A store of the three methods has no lists.
func TestStoresNeedNotList(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		for _, err := range client(t, struct{ record.Store }{s}).List(t.Context(), "") {
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("a lock, or %v", err)
			}
		}
	})
}
