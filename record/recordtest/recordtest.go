// Package recordtest checks a record.Store of your own.
//
//	func TestStore(t *testing.T) {
//		recordtest.Run(t, func(t testing.TB, n int) []record.Store {
//			table := emptyTable(t)
//			stores := make([]record.Store, n)
//			for i := range stores {
//				stores[i] = mine.New(connect(t), table)
//			}
//			return stores
//		})
//	}
//
// When it passes, run conformance.RunBackend over record.NewBackend of the Store: it checks that the locks are sound,
// and, with the functions of conformance.Store that inject faults, what happens to requests whose outcome is unknown.
package recordtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/golocker/locker/record"
)

// Run checks that a Store keeps the rules of [record.Store], as far as a test can, with one subtest per rule. stores
// makes n clients of one empty store, which are as independent of each other as those of n processes. It is called once
// per rule, and registers what has to be closed with t.Cleanup.
func Run(t *testing.T, stores func(t testing.TB, n int) []record.Store) {
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("the rule of %s: %s", r.name, r.rule)
				}
			})
			r.check(t, stores)
		})
	}
}

// rule is one rule, with the check for it.
type rule struct {
	name  string // the subtest
	rule  string // printed on failure
	check func(t testing.TB, stores makes)
}

var rules = []rule{
	{
		"NothingHasNoVersion",
		"Get of a record that does not exist returns an empty version and no error. Otherwise nobody could acquire a lock " +
			"for the first time.",
		nothingHasNoVersion,
	},
	{
		"TextsComeBack",
		"Get returns the text that was written last, with the version that the write has returned, to all clients.",
		textsComeBack,
	},
	{
		"CreateOnce",
		"Create of a record that exists fails with ErrConflict and changes nothing. Otherwise two processes that acquire a " +
			"lock for the first time both get it.",
		createOnce,
	},
	{
		"ReplaceNeedsTheVersion",
		"Replace with a version that a record has no longer, or never had, fails with ErrConflict and changes nothing. " +
			"Otherwise two processes that find a lock free both get it, and a request that comes late takes one away.",
		replaceNeedsTheVersion,
	},
	{
		"ReplaceCreatesNothing",
		"Replace of a record that does not exist fails with ErrConflict and creates nothing. Otherwise a renewal that " +
			"comes late brings back a lock that was deleted.",
		replaceCreatesNothing,
	},
	{
		"OneWins",
		"Of several writes at the same time that expect the same, one succeeds, and all others fail with ErrConflict. " +
			"Otherwise the store reads, compares and writes in several steps.",
		oneWins,
	},
	{
		"VersionsAreOnesOwn",
		"Create and Replace return the version of the text that they have written. Otherwise, as with a version that is " +
			"read afterwards, a process may get that of the next writer, and take its lock away.",
		versionsAreOnesOwn,
	},
	{
		"ReadsAreFresh",
		"A Get that begins after a write has ended returns what was written, or something newer, whichever client asks. " +
			"Otherwise locks of attempts that have failed are left behind.",
		readsAreFresh,
	},
	{
		"NamesAreTold",
		"Names of up to 200 bytes, of all characters that a Backend uses, belong to different records if they differ. " +
			"Otherwise a lock keeps others from a lock of another key.",
		namesAreTold,
	},
	{
		"EndedContext",
		"With a context that has ended, all methods fail at once, and not with ErrConflict. Otherwise callers hang with " +
			"the store.",
		endedContext,
	},
	{
		"ClockCanBeWritten",
		"If the Store is a Clock, its time is above 0 and does not go back, and its id has at most 64 bytes of UTF-8, the " +
			"same for all clients, or is empty. Otherwise there is no clock, or each process takes the others for dead.",
		clockCanBeWritten,
	},
}

// limit bounds a call to a store that works. It is generous, because machines are busy.
const limit = 10 * time.Second

// text is what a Backend writes for a free lock, with two values that a test can choose.
func text(owner string, last int) []byte {
	text, _ := json.Marshal(map[string]any{ // of texts and numbers: never fails
		"locker": 1, "state": "free", "owner": owner, "last": last, "nonce": fmt.Sprint(owner, last),
	})
	return text
}

// same reports whether two texts say the same.
func same(a, b []byte) bool {
	var one, two any
	if json.Unmarshal(a, &one) != nil || json.Unmarshal(b, &two) != nil {
		return false
	}
	return fmt.Sprint(one) == fmt.Sprint(two)
}

// makes is what makes n clients of an empty store.
type makes = func(t testing.TB, n int) []record.Store

// client is a Store under test, with what each check needs.
type client struct {
	t testing.TB
	s record.Store
}

func open(t testing.TB, stores func(t testing.TB, n int) []record.Store, n int) []client {
	t.Helper()
	var all []client
	for _, s := range stores(t, n) {
		all = append(all, client{t, s})
	}
	return all
}

func (c client) get(name string) (text []byte, version string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	text, version, err := c.s.Get(ctx, name)
	if err != nil {
		c.t.Fatalf("Get: expected no error, seen %v", err)
	}
	return text, version
}

// wants checks what a record is.
func (c client) wants(what, name string, text []byte, version string) {
	c.t.Helper()
	seen, v := c.get(name)
	if v != version {
		c.t.Errorf("Get %s: expected the version %q, seen %q", what, version, v)
	}
	if version != "" && !same(seen, text) {
		c.t.Errorf("Get %s: expected the text %s, seen %s", what, text, seen)
	}
}

// write creates a record if version is empty, and replaces it otherwise.
func (c client) write(name, version string, text []byte) (newVersion string, err error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	if version == "" {
		return c.s.Create(ctx, name, text)
	}
	return c.s.Replace(ctx, name, version, text)
}

// writes is write of what must succeed.
func (c client) writes(name, version string, text []byte) (newVersion string) {
	c.t.Helper()
	newVersion, err := c.write(name, version, text)
	switch {
	case err != nil:
		c.t.Fatalf("a write whose condition holds: expected no error, seen %v", err)
	case newVersion == "" || newVersion == version:
		c.t.Fatalf("a write over version %q: expected another version, and not an empty one, seen %q", version, newVersion)
	}
	return newVersion
}

// wantConflict checks that a write is refused.
func (c client) wantConflict(what, name, version string, text []byte) {
	c.t.Helper()
	if _, err := c.write(name, version, text); !errors.Is(err, record.ErrConflict) {
		c.t.Errorf("%s: expected an error that matches ErrConflict, seen %v", what, err)
	}
}

func nothingHasNoVersion(t testing.TB, stores makes) {
	for _, c := range open(t, stores, 2) {
		c.wants("of a record that does not exist", "k", nil, "")
	}
}

func textsComeBack(t testing.TB, stores makes) {
	cs := open(t, stores, 2)
	long := text(`"quoted", büro 3 \ <b>`+strings.Repeat("x", 600), 1)
	version := cs[0].writes("k", "", long)
	cs[0].wants("after Create", "k", long, version)
	cs[1].wants("after Create by another client", "k", long, version)
	short := text("a", 2)
	version = cs[1].writes("k", version, short)
	cs[0].wants("after Replace by another client", "k", short, version)
	cs[1].wants("after Replace", "k", short, version)
}

func createOnce(t testing.TB, stores makes) {
	cs := open(t, stores, 2)
	first := text("a", 1)
	version := cs[0].writes("k", "", first)
	for _, c := range cs {
		c.wantConflict("Create of a record that exists", "k", "", text("b", 2))
		c.wantConflict("Create of a record that exists, with its text", "k", "", first)
		c.wants("after a Create that was refused", "k", first, version)
	}
}

func replaceNeedsTheVersion(t testing.TB, stores makes) {
	cs := open(t, stores, 2)
	var old []string
	last := text("a", 0)
	version := cs[0].writes("k", "", last)
	other := cs[0].writes("other", "", text("b", 0))
	for i := range 5 {
		old = append(old, version)
		last = text("a", i+1)
		version = cs[i%2].writes("k", version, last)
		for _, v := range old {
			cs[(i+1)%2].wantConflict("Replace of an old version", "k", v, text("c", i))
		}
		cs[i%2].wants("after a Replace that was refused", "k", last, version)
	}
	cs[0].wantConflict("Replace with the version of another record", "k", other, text("c", 9))
	cs[0].wants("after a Replace that was refused", "k", last, version)
}

func replaceCreatesNothing(t testing.TB, stores makes) {
	cs := open(t, stores, 2)
	version := cs[0].writes("other", "", text("a", 1))
	cs[1].wantConflict("Replace of a record that does not exist", "k", version, text("a", 2))
	cs[0].wants("after a Replace of a record that does not exist", "k", nil, "")
}

func oneWins(t testing.TB, stores makes) {
	const writers, rounds = 4, 20
	cs := open(t, stores, writers)
	version := ""
	for round := range rounds {
		var wg sync.WaitGroup
		var winners atomic.Int32
		var won atomic.Value
		for i, c := range cs {
			wg.Go(func() {
				v, err := c.write("k", version, text(fmt.Sprint(i), round))
				switch {
				case err == nil:
					winners.Add(1)
					won.Store(v)
				case !errors.Is(err, record.ErrConflict):
					t.Errorf("writes at the same time: expected errors that match ErrConflict, seen %v", err)
				}
			})
		}
		wg.Wait()
		if n := winners.Load(); n != 1 {
			t.Fatalf("%d writes at the same time over one version: expected one to succeed, seen %d", writers, n)
		}
		version = won.Load().(string)
		if _, seen := cs[0].get("k"); seen != version {
			t.Fatalf("after writes at the same time: expected the version %q of the one that has succeeded, seen %q", version,
				seen)
		}
	}
}

func versionsAreOnesOwn(t testing.TB, stores makes) {
	cs := open(t, stores, 6)
	cs[0].writes("k", "", text("first", 0))
	var mu sync.Mutex
	written := make(map[string][]byte) // by version
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() {
			for n := range 30 {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				_, seen, err := c.s.Get(ctx, "k")
				cancel()
				if err != nil {
					t.Errorf("Get beside writes: expected no error, seen %v", err)
					return
				}
				mine := text(fmt.Sprint(i), n)
				version, err := c.write("k", seen, mine)
				if err != nil {
					continue // another one was first
				}
				mu.Lock()
				if other, ok := written[version]; ok {
					t.Errorf("a write of %s beside others: expected a version of its own, seen that of %s", mine, other)
				}
				written[version] = mine
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func readsAreFresh(t testing.TB, stores makes) {
	cs := open(t, stores, 3)
	version := ""
	for i := range 30 {
		next := text("a", i)
		version = cs[i%3].writes("k", version, next)
		for _, c := range cs {
			c.wants("after a write of any client", "k", next, version)
		}
	}
}

func namesAreTold(t testing.TB, stores makes) {
	c := open(t, stores, 1)[0]
	long := strings.Repeat("x", 199)
	names := []string{
		"a", "aa", "-", "--", "_", "a-b", "a_b", "a=2fb", "a_2fb", "=2e", "=2e=2e", "0", "00", "con", "-rf", "lock=3ak",
		long, long + "1", long + "2", strings.Repeat("=2f", 66), "=s" + strings.Repeat("0", 64),
	}
	for i, name := range names {
		c.wants(fmt.Sprintf("of the name %q", name), name, nil, "")
		version := c.writes(name, "", text("a", i))
		c.wants(fmt.Sprintf("of the name %q", name), name, text("a", i), version)
	}
	for i, name := range names {
		if seen, _ := c.get(name); !same(seen, text("a", i)) {
			t.Errorf("Get of the name %q: expected its own text %s, seen %s", name, text("a", i), seen)
		}
	}
}

func endedContext(t testing.TB, stores makes) {
	c := open(t, stores, 1)[0]
	version := c.writes("k", "", text("a", 1))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, ctx := range []context.Context{cancelled, late} {
		for what, call := range map[string]func() error{
			"Get":     func() error { _, _, err := c.s.Get(ctx, "k"); return err },
			"Create":  func() error { _, err := c.s.Create(ctx, "new", text("a", 2)); return err },
			"Replace": func() error { _, err := c.s.Replace(ctx, "k", version, text("a", 2)); return err },
		} {
			done := make(chan error, 1)
			go func() { done <- call() }()
			timer := time.NewTimer(limit)
			select {
			case err := <-done:
				if err == nil || errors.Is(err, record.ErrConflict) {
					t.Errorf("%s with a context that has ended: expected an error that is no conflict, seen %v", what, err)
				}
			case <-timer.C:
				t.Fatalf("%s with a context that has ended: expected it to return at once, seen it under way after %v", what,
					limit)
			}
			timer.Stop()
		}
	}
}

func clockCanBeWritten(t testing.TB, stores makes) {
	known := ""
	for _, c := range open(t, stores, 2) {
		clock, ok := c.s.(record.Clock)
		if !ok {
			return
		}
		id, now := clock.Clock()
		again, later := clock.Clock()
		switch {
		case id != again || known != "" && id != "" && id != known:
			t.Errorf("Clock: expected one id, seen %q, %q and %q", known, id, again)
		case id != "" && (len(id) > 64 || !utf8.ValidString(id)):
			t.Errorf("Clock: expected an id of at most 64 bytes of UTF-8, seen %q", id)
		case id != "" && (now <= 0 || later < now):
			t.Errorf("Clock: expected times above 0 that do not go back, seen %v and then %v", now, later)
		}
		known = id
	}
}
