package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

// listed is how many locks the suite lists: more than two pages of the stores of this module.
const listed = 230

// listers makes n clients whose store lists its locks, or skips the property.
func listers(t testing.TB, h Harness, n int) ([]locker.Locker, inspect.Lister) {
	t.Helper()
	ls, _ := clients(t, h, n)
	l, ok := locker.As[inspect.Lister](ls[0])
	if !ok {
		t.Skip("the Locker does not implement inspect.Lister")
	}
	for _, err := range l.List(t.Context(), "") {
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip("the backend cannot list its locks")
		}
		t.Fatalf("List of an empty store: expected nothing, seen a lock or the error %v", err)
	}
	return ls, l
}

// lockEach acquires many locks at the same time.
func lockEach(t testing.TB, l locker.Locker, keys []string) map[string]locker.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*hangLimit)
	defer cancel()
	leases, next := make([]locker.Lease, len(keys)), make(chan int)
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for i := range next {
				lease, err := l.Lock(ctx, keys[i], locker.TTL(longTTL), locker.NoRenewal(), locker.Label("web-7:4211"))
				if err != nil {
					t.Errorf("Lock of the free lock %.40q: expected a lease, seen %v", keys[i], err)
				}
				leases[i] = lease
			}
		})
	}
	for i := range keys {
		next <- i
	}
	close(next)
	calls.Wait()
	byKey := make(map[string]locker.Lease)
	for i, key := range keys {
		byKey[key] = leases[i]
	}
	if t.Failed() {
		t.FailNow()
	}
	return byKey
}

func listingIsComplete(t testing.TB, h Harness) {
	ls, lister := listers(t, h, 2)
	i, _ := locker.As[inspect.Inspector](ls[0])
	const prefix = "p*[:"
	var keys, others []string
	for n := range listed {
		keys = append(keys, fmt.Sprintf("%s%d", prefix, n))
	}
	for _, odd := range []string{
		"", "A", "{a}", "{a}b", "a}b", "}{", "{", "a{b}c{d}", "\x00", "a\xff\xfe", "*", "a?", "\\", "a%_", "käse", "a@b",
		"a#1", strings.Repeat("x", 1000), strings.Repeat("x", 1001),
	} {
		keys = append(keys, prefix+odd)
	}
	others = append(others, "p", "p*", "pp[:1", "p*[", "P*[:1", "p*[;1", "q", "{"+prefix+"1}")
	leases := lockEach(t, ls[1], keys)
	for key, lease := range lockEach(t, ls[1], append(others, prefix+"freed", prefix+"freed, too")) {
		if strings.HasPrefix(key, prefix) {
			unlock(t, lease)
		}
	}
	const keep = prefix + "kept"
	unlock(t, lock(t, ls[1], keep, locker.TTL(longTTL), locker.MinHold(longTTL)))

	begun, seen, cut := time.Now(), make(map[string]inspect.Listed), 0
	for l, err := range lister.List(t.Context(), prefix) {
		if err != nil {
			t.Fatalf("List: expected no error, seen %v after %d locks", err, len(seen))
		}
		if len(seen)%50 == 0 { // others go on
			unlock(t, lock(t, ls[1], "elsewhere", locker.TTL(longTTL)))
			unlock(t, lock(t, ls[1], prefix+"passing", locker.TTL(longTTL)))
			if err := leases[keys[len(seen)%listed]].Extend(t.Context()); err != nil {
				t.Errorf("Extend: expected no error, seen %v", err)
			}
		}
		if l.Cut {
			cut++
			continue
		}
		if l.At.Before(begun) || l.At.After(time.Now()) {
			t.Errorf("expected the time at which the lock was read, within the listing, seen %v", l.At)
		}
		seen[l.Key] = l
	}
	missing := 0
	for _, key := range keys {
		l, ok := seen[key]
		delete(seen, key)
		want, err := i.Inspect(t.Context(), key)
		switch {
		case err != nil:
			t.Errorf("Inspect of a held lock: expected no error, seen %v", err)
		case !ok && cut > 0 && len(key) > 100:
			cut--
		case !ok:
			missing++
			t.Errorf("expected the lock %.40q in the list, which was held all the time, seen %d others", key, len(seen))
		case l.State != inspect.Held || l.Owner != want.Owner || l.Label != want.Label || l.Fence != want.Fence ||
			l.Waiting != want.Waiting || l.Remaining <= 0 || l.Remaining > longTTL+h.Granularity+slack:
			t.Errorf("%.40q: expected what Inspect shows, %+v, seen %+v", key, want, l.Inspection)
		}
		if missing == 3 {
			t.FailNow() // others may be missing, too
		}
	}
	if l := seen[keep]; l.State != inspect.Kept {
		t.Errorf("expected the lock that MinHold keeps, as %s, seen %+v", inspect.Kept, l)
	}
	delete(seen, keep)
	delete(seen, prefix+"passing")
	for key, l := range seen {
		t.Errorf("expected no others in the list, seen %.40q, as %s", key, l.State)
	}
	if cut > 0 {
		t.Errorf("expected no other key to be cut, seen %d", cut)
	}
}

func listingEnds(t testing.TB, h Harness) {
	ls, lister := listers(t, h, 2)
	keys := make([]string, listed)
	for n := range keys {
		keys[n] = fmt.Sprint(n)
	}
	lockEach(t, ls[1], keys)
	for _, err := range lister.List(t.Context(), "") {
		if err != nil {
			t.Errorf("List: expected no error, seen %v", err)
		}
		break
	}
	// each ends a listing after the first lock
	ends := func(what string, ctx context.Context, end func(), want error) {
		t.Helper()
		n, failed := 0, error(nil)
		for _, err := range lister.List(ctx, "") {
			if failed != nil {
				t.Errorf("List, %s: expected the error to be the last, seen more", what)
			}
			if failed = err; err == nil && n == 0 {
				end()
			}
			n++
		}
		if !errors.Is(failed, want) { // and locker.ErrUnavailable, if the store was being asked
			t.Errorf("List, %s: expected an error that matches %q, seen %v", what, want, failed)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ends("whose context ends", ctx, cancel, context.Canceled)
	ends("whose context has ended", ctx, func() {}, context.Canceled)
	c, ok := locker.As[io.Closer](ls[0])
	if !ok {
		return
	}
	ends("of a client that is closed", t.Context(), func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: expected no error, seen %v", err)
		}
	}, locker.ErrClosed)
	ends("of a client that was closed", t.Context(), func() {}, locker.ErrClosed)
}
