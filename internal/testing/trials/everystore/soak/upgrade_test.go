package soak

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
)

const (
	// upgradeEnv is how long each store is tried, such as 1m. Without it, one store is, for seconds, and the other
	// program is this one.
	upgradeEnv = "LOCKER_UPGRADE"
	// fromEnv is the commit of the other program. By default, it is that of the last release, and before the first
	// release unreleased.
	fromEnv = "LOCKER_UPGRADE_FROM"

	// unreleased is a commit before the first release, of which programs are in use. Its stored data has other meanings.
	// It has no soak, and so gets the one of soakFrom, which was made a few hours later.
	unreleased, soakFrom = "d13e3dc2", "bd8806c0"
)

// strangers says in which stores programs of unreleased and of this commit refuse each other, and with which words a
// new one does.
var strangers = map[string]string{"NATS": "its format is v1"}

// stopped is a store in which programs of unreleased have to be stopped before an upgrade: nothing makes them refuse
// it, and their tokens are smaller.
const stopped = "etcd, 3 members"

// Programs of two releases use the same locks during a rolling upgrade, while processes, servers and networks fail. It
// holds what holds for programs of one release.
//
// The other program is the test of its own commit, with the library and the worker of that time. So the API may have
// changed since, but not what a plan and a word say.
func TestUpgrade(t *testing.T) {
	g, other, commit := newGoal(t, upgradeEnv, goal{time: 4 * time.Second}), os.Args[0], ""
	if g.all {
		other, commit = build(t)
	}
	onStores(t, 1, g.all, func(tr *trial) {
		if tr.of.Name == stopped && commit == unreleased {
			tr.Log("programs of that time have to be stopped first")
			return
		}
		if refusal := strangers[tr.of.Name]; refusal != "" && commit == unreleased {
			tr.keepApart(other, refusal)
			return
		}
		tr.boundPlaces()
		works := []work{ofLocks, ofPlaces}
		if strings.HasPrefix(tr.of.Name, "single") && commit == unreleased { // each permit was a lock
			works = works[:1]
		}
		for _, w := range works {
			tr.begin(4, plan{Work: w, Mixed: 10, program: other})
		}
		old := func(s *span) bool { return tr.others[s.who] }
		tr.await(now(), 20, "an old program had a lock", old)
		upgrade := func(from int) { // every second process
			for i := from; i < len(tr.all); i += 2 {
				p := tr.all[i].plan
				p.program = ""
				tr.replace(i, p, i%4 == 3)
			}
			tr.await(now(), 20, "a new program had a lock", func(s *span) bool { return !old(s) })
		}
		upgrade(1)
		tr.disturb(tr.until(g))
		tr.await(now(), 20, "an old program had a lock beside new ones", old)
		upgrade(0)
		tr.end()
		tr.lockEach()
		tr.nothingLeft(locksOfPlaces)
		tr.verdict()

		relied := func(s *span) bool { return s.last > 0 }
		n, of := tr.judge.count(relied), tr.judge.count(func(s *span) bool { return relied(s) && old(s) })
		changes := tr.judge.changes(old)
		tr.Logf("%d locks, permits, shared and exclusive locks were relied on, %d of them by old programs; %d times they "+
			"went from an old program to a new one or back; %d processes in %v and two upgrades; %v",
			n, of, changes, tr.number, g.time, tr.faults)
		if changes < 10 {
			tr.Errorf("that is too few to show anything")
		}
	})
}

// changes counts how often a lease of a key came after one of another kind of program.
func (j *judge) changes(old func(s *span) bool) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, spans := range j.byKey() {
		var before *span
		for _, s := range spans {
			if s.last == 0 {
				continue
			}
			if before != nil && old(before) != old(s) {
				n++
			}
			before = s
		}
	}
	return n
}

// keepApart lets a program of this commit meet what an old one uses, and an old one what this one uses.
func (tr *trial) keepApart(other, refusal string) {
	refused := func() {
		tr.Helper()
		l := tr.open()
		defer func() { _ = l.Close() }()
		ctx, cancel := context.WithTimeout(tr.Context(), limit)
		defer cancel()
		_, err := l.TryLock(ctx, "new")
		if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), refusal) {
			tr.Errorf("a new program beside old ones: expected an error that says %q, seen %v", refusal, err)
		}
	}
	tr.begin(2, plan{Work: ofLocks, program: other})
	has := func(s *span) bool { return tr.others[s.who] }
	tr.await(now(), 20, "an old program had a lock", has)
	refused()
	tr.end()
	refused()
	tr.verdict()

	next := newTrial(tr.T, tr.of)
	l := next.open()
	defer func() { _ = l.Close() }()
	lease, err := l.TryLock(next.Context(), "new")
	if err != nil {
		next.Fatal(err)
	}
	next.begin(2, plan{Work: ofLocks, program: other})
	<-time.After(limit) // the old programs print nothing but what they have
	next.end()
	if n := next.judge.count(func(*span) bool { return true }); n > 0 {
		next.Errorf("old programs had %d locks in a store that a new one uses", n)
	}
	if err := lease.Unlock(next.Context()); err != nil {
		next.Error(err)
	}
}

// build builds this test as it was at the other commit, and returns the program and the commit.
func build(t *testing.T) (program, commit string) {
	t.Helper()
	const root, module = "../../../../..", "internal/testing/trials/everystore"
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	tags := run("git", "tag", "--list", "v*", "--sort=version:refname", "--merged", "HEAD")
	last := tags[strings.LastIndex(tags, "\n")+1:]
	commit = cmp.Or(os.Getenv(fromEnv), last, unreleased)
	dir := t.TempDir()
	archive, program := filepath.Join(dir, "tree.tar"), filepath.Join(dir, "old")
	extract := func(args ...string) {
		run("git", append([]string{"archive", "-o", archive}, args...)...)
		run("tar", "-x", "-f", archive, "-C", dir)
	}
	extract(commit)
	if commit == unreleased {
		extract(soakFrom, module)
	}
	run("go", "test", "-C", filepath.Join(dir, module), "-c", "-o", program, "./soak")
	t.Logf("the old program is that of %s", run("git", "log", "-1", "--format=%h %s", commit))
	return program, commit
}
