// Package recordtest checks a record.Store of your own.
//
//	func TestStore(t *testing.T) {
//		recordtest.Run(t, func(t testing.TB, table string) (record.Store, string) {
//			if table == "" {
//				table = emptyTable(t)
//			}
//			return mine.New(connect(t), table), table
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
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker/record"
)

// Run checks that a Store keeps the rules of [record.Store], as far as a test can, with one subtest per rule.
//
// open makes a client of a store, which is as independent of other clients as one in another process, and says where
// the store is: an address, a table, a directory, or several of these. If place is empty, the store is a new one
// without records. Otherwise it is the one of that place. open registers what has to be closed with t.Cleanup.
//
// Some clients are in other processes. Each of these is this test binary, which Run starts again with the same flags
// and variables, and with -test.run for t alone. In there, Run calls open for places only, and the test ends with it.
// What a test does before Run, TestMain included, happens in these processes, too, so servers should be started within
// open, where place is empty. A server that takes long to start may be one for all: the first such call starts it and
// registers its end with the test that calls Run, and each makes an empty part of it, such as a directory. A store that
// no other process can reach, as a double in memory, has an empty place. Its one client then stands for all, and the
// rule about processes is skipped.
func Run(t *testing.T, open func(t testing.TB, place string) (s record.Store, at string)) {
	if serves(t, open) {
		t.SkipNow()
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("the rule of %s: %s", r.name, r.rule)
				}
			})
			r.check(t, open)
		})
	}
}

// rule is one rule, with the check for it.
type rule struct {
	name  string // the subtest
	rule  string // printed on failure
	check func(t testing.TB, open opener)
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
		"VersionsDiffer",
		"Texts that a record has had have different versions, however alike they are. Otherwise a request that comes late " +
			"overwrites a text that it has not seen.",
		versionsDiffer,
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
		"TextAndVersionAreOne",
		"Get returns a text together with its own version, and a record that exists is never missing. Otherwise, as with " +
			"a text and a version of two requests, a process that has seen a free lock takes one that is held.",
		textAndVersionAreOne,
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
		"ContextsEndDuringCalls",
		"If its context ends during a call, the call returns the truth or an error that is not ErrConflict, and later " +
			"calls get their own answers. Otherwise a process believes that it has a lock, or that nothing is left of it.",
		contextsEndDuringCalls,
	},
	{
		"AcrossProcesses",
		"What holds among clients of one process holds among processes. Otherwise, if no other rule is broken, a mutex, a " +
			"counter or a cache of the process does what the store should do.",
		acrossProcesses,
	},
	{
		"ClockCanBeWritten",
		"If the Store is a Clock, its time is above 0 and does not go back, and its id has at most 64 bytes of UTF-8, the " +
			"same for all clients, or is empty. Otherwise there is no clock, or each process takes the others for dead.",
		clockCanBeWritten,
	},
	{
		"AnswersTellTheTime",
		"If the Store is a ServerClock, the answers to Get, and to Create and Replace that succeed, tell the time, and it " +
			"is the same for all clients. Otherwise records do not say when they end.",
		answersTellTheTime,
	},
	{
		"ChangesAreTold",
		"If the Store is a Watcher, a watch that is live calls changed when it begins and for each change, whichever " +
			"client has made it, until it is stopped. Otherwise waiters learn of a release up to ten pauses late, or " +
			"watches pile up.",
		changesAreTold,
	},
	{
		"ListsAreComplete",
		"If the Store is a Lister, its pages have each record of a prefix that was there all the time, also if others " +
			"write it meanwhile, with a text that is not older than the first page, or none, and no other records. Otherwise " +
			"people who look for a lock do not see it, or see one that is free.",
		listsAreComplete,
	},
}

// limit bounds a call to a store that works. It is generous, because machines are busy.
const limit = 10 * time.Second

// text is what a Backend writes for a free lock, with two values that a test can choose.
func text(owner string, last int) []byte { return sealed(owner, last, fmt.Sprint(owner, last)) }

// sealed is text with a nonce. Its members are in the order in which a Backend writes them.
func sealed(owner string, last int, nonce string) []byte {
	text, _ := json.Marshal(struct { // of texts and numbers: never fails
		Format int    `json:"locker"`
		State  string `json:"state"`
		Owner  string `json:"owner"`
		Last   int    `json:"last"`
		Nonce  string `json:"nonce"`
	}{1, "free", owner, last, nonce})
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

// opener is the argument of Run.
type opener = func(t testing.TB, place string) (s record.Store, at string)

// client is a Store under test, with what each check needs.
type client struct {
	t testing.TB
	s record.Store
}

// clients makes n clients of an empty store.
func clients(t testing.TB, open opener, n int) []client {
	t.Helper()
	first, place := open(t, "")
	all := []client{{t, first}}
	for len(all) < n {
		s := first
		if place != "" {
			s, _ = open(t, place)
		}
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

func nothingHasNoVersion(t testing.TB, open opener) {
	for _, c := range clients(t, open, 2) {
		c.wants("of a record that does not exist", "k", nil, "")
	}
}

func textsComeBack(t testing.TB, open opener) {
	cs := clients(t, open, 2)
	version := ""
	for i, owner := range []string{
		strings.Repeat("x", 440), "a", `"quoted", büro 3 \ <b>` + strings.Repeat("x", 400), strings.Repeat("long", 4000),
	} {
		next := text(owner, i)
		version = cs[i%2].writes("k", version, next)
		cs[i%2].wants("after a write", "k", next, version)
		cs[1-i%2].wants("after a write by another client", "k", next, version)
	}
}

func createOnce(t testing.TB, open opener) {
	cs := clients(t, open, 2)
	first := text("a", 1)
	version := cs[0].writes("k", "", first)
	for _, c := range cs {
		c.wantConflict("Create of a record that exists", "k", "", text("b", 2))
		c.wantConflict("Create of a record that exists, with its text", "k", "", first)
		c.wants("after a Create that was refused", "k", first, version)
	}
}

func replaceNeedsTheVersion(t testing.TB, open opener) {
	cs := clients(t, open, 2)
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

func replaceCreatesNothing(t testing.TB, open opener) {
	cs := clients(t, open, 2)
	version := cs[0].writes("other", "", text("a", 1))
	cs[1].wantConflict("Replace of a record that does not exist", "k", version, text("a", 2))
	cs[0].wants("after a Replace of a record that does not exist", "k", nil, "")
}

// alike are nonces of texts that have equal checksums: CRC-32 (two of them), FNV-1a, Adler-32, and SHA-256 of which
// only four bytes are kept.
var alike = [][2]string{
	{"8755d764", "4170cb18"}, {"1441e896", "fca1a963"}, {"d2f64fc4", "d54bab54"}, {"c2c5802e", "4c2c6c25"},
	{"d18747a4", "414384b5"},
}

func versionsDiffer(t testing.TB, open opener) {
	c := clients(t, open, 1)[0]
	for i, nonces := range alike {
		name := fmt.Sprint("k", i)
		version := c.writes(name, "", sealed("owner", 1, nonces[0]))
		c.writes(name, version, sealed("owner", 1, nonces[1]))
	}
}

// hammering is for how long clients at least write one record at the same time. The window between two steps may be
// short.
const hammering = 500 * time.Millisecond

func oneWins(t testing.TB, open opener) {
	const writers, records = 4, 20
	cs := clients(t, open, writers)
	race := func(name, version string, round int) (newVersion string) {
		var wg sync.WaitGroup
		var winners atomic.Int32
		var won atomic.Value
		for i, c := range cs {
			wg.Go(func() {
				v, err := c.write(name, version, text(fmt.Sprint(i), round))
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
		newVersion = won.Load().(string)
		if _, seen := cs[0].get(name); seen != newVersion {
			t.Fatalf("after writes at the same time: expected the version %q of the one that has succeeded, seen %q",
				newVersion, seen)
		}
		return newVersion
	}
	for i := range records {
		name, version := fmt.Sprint("k", i), ""
		for start, round := time.Now(), 0; round < 2 || time.Since(start) < hammering/records; round++ {
			version = race(name, version, round)
		}
	}
}

// state is what a record was, as a call has said.
type state struct{ text, version string }

// contend has several clients write one record at the same time. It returns what they have read, and what those have
// written that have succeeded. The first of these was there before.
func contend(t testing.TB, open opener) (reads, written []state) {
	cs := clients(t, open, 4)
	first := text("first", 0)
	written = append(written, state{string(first), cs[0].writes("k", "", first)})
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	for i, c := range cs {
		wg.Go(func() {
			var texts [][]byte // they are looked at when all is over: a Store may have another use for their memory
			var versions []string
			for n := 0; n < 40 || time.Since(start) < hammering/2; n++ {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				seen, version, err := c.s.Get(ctx, "k")
				cancel()
				if err != nil {
					t.Errorf("Get beside writes: expected no error, seen %v", err)
					break
				}
				texts, versions = append(texts, seen), append(versions, version)
				mine := text(fmt.Sprint(i), n)
				if version, err = c.write("k", version, mine); err == nil {
					mu.Lock()
					written = append(written, state{string(mine), version})
					mu.Unlock()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for i, text := range texts {
				reads = append(reads, state{string(text), versions[i]})
			}
		})
	}
	wg.Wait()
	return reads, written
}

func versionsAreOnesOwn(t testing.TB, open opener) {
	_, written := contend(t, open)
	texts := make(map[string]string) // by version
	for _, w := range written {
		if other, ok := texts[w.version]; ok {
			t.Fatalf("a write of %s beside others: expected a version of its own, seen that of %s", w.text, other)
		}
		texts[w.version] = w.text
	}
}

func textAndVersionAreOne(t testing.TB, open opener) {
	reads, written := contend(t, open)
	texts := make(map[string]string) // by version
	for _, w := range written {
		texts[w.version] = w.text
	}
	for _, r := range reads {
		if want := texts[r.version]; !same([]byte(r.text), []byte(want)) {
			t.Fatalf("Get beside writes: expected the text %s of the version %q that it returned, seen %s", want, r.version,
				r.text)
		}
	}
}

func readsAreFresh(t testing.TB, open opener) {
	cs := clients(t, open, 3)
	version := ""
	for i := range 30 {
		next := text("a", i)
		version = cs[i%3].writes("k", version, next)
		for _, c := range cs {
			c.wants("after a write of any client", "k", next, version)
		}
	}
}

func namesAreTold(t testing.TB, open opener) {
	c := clients(t, open, 1)[0]
	long := strings.Repeat("x", 199)
	names := []string{
		"a", "aa", "-", "--", "_", "a-b", "a_b", "a=2fb", "a_2fb", "a-2fb", "a2fb", "a=2db", "a=5fb", "=61", "=2e",
		"=2e=2e", "0", "00", "con", "-rf", "lock=3ak", long, long + "1", long + "2", strings.Repeat("=2f", 66),
		"=s" + strings.Repeat("0", 64),
	}
	versions := make([]string, len(names))
	for i, name := range names {
		c.wants(fmt.Sprintf("of the name %q", name), name, nil, "")
		versions[i] = c.writes(name, "", text("a", i))
		c.wants(fmt.Sprintf("of the name %q", name), name, text("a", i), versions[i])
	}
	for i, name := range names {
		versions[i] = c.writes(name, versions[i], text("b", i))
	}
	for i, name := range names {
		c.wants(fmt.Sprintf("of the name %q", name), name, text("b", i), versions[i])
	}
}

func endedContext(t testing.TB, open opener) {
	c := clients(t, open, 1)[0]
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

// contextsEndDuringCalls ends contexts at times at which calls are usually under way. After each call, one of another
// record would get an answer that came too late for the call before it.
func contextsEndDuringCalls(t testing.TB, open opener) {
	c := clients(t, open, 1)[0]
	other := text("other", 0)
	otherVersion := c.writes("other", "", other)
	usual := limit
	for range 5 {
		start := time.Now()
		c.get("other")
		usual = min(usual, time.Since(start))
	}
	for i := range 90 {
		name, before, after := fmt.Sprint("k", i), text("before", i), text("after", i)
		version, what := "", "Create"
		if i%3 > 0 {
			version, what = c.writes(name, "", before), "Replace"
		}
		if i%3 == 2 {
			after, what = before, "Get"
		}
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*usual+1))
		var newVersion string
		var err error
		switch what {
		case "Create":
			newVersion, err = c.s.Create(ctx, name, after)
		case "Replace":
			newVersion, err = c.s.Replace(ctx, name, version, after)
		default:
			after, newVersion, err = c.s.Get(ctx, name)
		}
		cancel()
		c.wants("after a "+what+" of another record whose context has ended", "other", other, otherVersion)
		seen, seenVersion := c.get(name)
		executed := seenVersion != "" && same(seen, after)
		switch {
		case err == nil && (!executed || seenVersion != newVersion):
			t.Errorf("%s whose context ended, without an error: expected the text %s and the version %q, seen %s and %q",
				what, after, newVersion, seen, seenVersion)
		case errors.Is(err, record.ErrConflict) && !executed:
			t.Errorf("%s whose context ended, and whose condition held: expected an error that is no conflict, seen %v", what,
				err)
		case !executed && seenVersion != version:
			t.Errorf("after a %s whose context ended: expected the version %q of before, or what was written, seen %q and %s",
				what, version, seenVersion, seen)
		}
	}
}

// acrossProcesses repeats what a store may do for one process only.
func acrossProcesses(t testing.TB, open opener) {
	if _, place := open(t, ""); place == "" {
		t.Skip("no other process can reach the store: open returned no place")
	}
	others, end := start(t, 3)
	defer end()
	for _, check := range []func(testing.TB, opener){
		textsComeBack, replaceNeedsTheVersion, oneWins, versionsAreOnesOwn, textAndVersionAreOne, readsAreFresh,
	} {
		n := 0
		check(t, func(t testing.TB, place string) (s record.Store, at string) {
			if place == "" {
				return open(t, "")
			}
			n++
			return others[n-1].open(t, place), place
		})
	}
}
