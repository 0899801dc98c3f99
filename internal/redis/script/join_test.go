package script_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/drivers/redigodriver"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
)

// joint sends joined commands to a real server.
type joint struct {
	t *testing.T
	s *redistest.Server
	d drivers.Driver
}

func newJoint(t *testing.T, args ...string) joint {
	t.Helper()
	s := redistest.Start(t, args...)
	return joint{t, s, dial(t, s)}
}

func dial(t *testing.T, s *redistest.Server, options ...redis.DialOption) drivers.Driver {
	pool := &redis.Pool{MaxIdle: 1, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", s.Addr(), options...) }}
	t.Cleanup(func() { _ = pool.Close() })
	return redigodriver.New(pool)
}

// taking is the usual acquisition of a lock by an owner, with a counter of its own.
func taking(lock, owner string) *script.Usual {
	return &script.Usual{
		Lock: lock, Wait: "{" + lock + "}:lockwait", Fence: "fence of " + lock, Text: "|" + owner + "|1|web-7",
		TTL: 10 * time.Second, Quantum: 1,
	}
}

// leaving is the usual release of a lock that the owner got with that counter.
func leaving(lock, owner string, counter int64) *script.Usual {
	return &script.Usual{Lock: lock, Text: fmt.Sprintf("%016d|%s|1|web-7", counter, owner)}
}

// sends returns the numbers of a joined command.
func (j joint) sends(usual ...*script.Usual) []int64 {
	j.t.Helper()
	cmd := script.Join(usual)
	words := append(drivers.Command{"EVAL", cmd.Source}, cmd.Words[2:]...)
	replies, err := j.d.Do(j.t.Context(), words)
	if err != nil {
		j.t.Fatal(err)
	}
	numbers, err := script.ReadJoined(replies[0], len(usual))
	if err != nil {
		j.t.Fatal(err)
	}
	return numbers
}

// is checks numbers: 1 and 0 as they stand, and 2 for any counter.
func (j joint) is(what string, got []int64, want ...int64) {
	j.t.Helper()
	got = slices.Clone(got)
	for i, n := range got {
		if n > 1 {
			got[i] = 2
		}
	}
	if !slices.Equal(got, want) {
		j.t.Errorf("%s: %d, want %d", what, got, want)
	}
}

// has checks the value of a key; an empty one means that there is no key.
func (j joint) has(key, want string) {
	j.t.Helper()
	if got, _ := j.s.Cmd(j.t, "GET", key).(string); got != want {
		j.t.Errorf("%s is %q, want %q", key, got, want)
	}
}

// clock returns the server's time in µs.
func (j joint) clock() int64 {
	j.t.Helper()
	var n [2]int64
	for i, part := range j.s.Cmd(j.t, "TIME").([]any) {
		n[i], _ = strconv.ParseInt(part.(string), 10, 64)
	}
	return n[0]*1e6 + n[1]
}

func TestJoinedLocksAreTakenAndReleased(t *testing.T) {
	j := newJoint(t)
	for _, n := range []int{1, 2, script.MaxJoined} {
		before := j.clock()
		var locks, releases []*script.Usual
		for i := range n {
			locks = append(locks, taking(fmt.Sprint("k", i), "o"))
		}
		got := j.sends(locks...)
		for i, counter := range got {
			if lock := fmt.Sprint("k", i); counter < before || counter > j.clock() {
				t.Errorf("%d joined: the counter of %s is %d, at %d", n, lock, counter, before)
			} else {
				j.has(lock, fmt.Sprintf("%016d|o|1|web-7", counter))
				j.has("fence of "+lock, fmt.Sprintf("%016d", counter))
			}
			releases = append(releases, leaving(fmt.Sprint("k", i), "o", counter))
		}
		for _, key := range []string{"k0", fmt.Sprint("k", n-1)} {
			ms := j.s.Cmd(t, "PTTL", key).(int64)
			if since := (j.clock() - before) / 1000; ms > 10000 || ms < 10000-since-1 {
				t.Errorf("%s lives for %d ms, %d ms after it was taken at the earliest", key, ms, since)
			}
		}
		if ttl := j.s.Cmd(t, "TTL", "fence of k0"); ttl != int64(-1) {
			t.Errorf("the counter lives for %v s", ttl)
		}
		if got := j.sends(releases...); slices.Contains(got, 0) || slices.Max(got) != 1 {
			t.Errorf("%d releases: %d", n, got)
		}
		if left := j.s.Keys(t, "k*"); len(left) > 0 {
			t.Errorf("%d joined releases left %q", n, left)
		}
	}
}

// A command may have the same lock twice. The first one gets it.
func TestSameLockTwiceInOneCommand(t *testing.T) {
	j := newJoint(t)
	got := j.sends(taking("k", "a"), taking("other", "c"), taking("k", "b"))
	j.is("the same lock twice", got, 2, 2, 0)
	j.has("k", fmt.Sprintf("%016d|a|1|web-7", got[0]))
	release := leaving("k", "a", got[0])
	j.is("a lock and its release", j.sends(taking("k", "d"), release), 0, 1)
	j.is("the same release twice, late", j.sends(release, release), 0, 0)
	release = leaving("k", "a", j.sends(taking("k", "a"))[0])
	j.is("the same release twice", j.sends(release, release), 1, 1)
}

func TestUnusualLocksAreLeftAsTheyAre(t *testing.T) {
	for name, make := range map[string]func(j joint){
		"held":             func(j joint) { j.s.Cmd(t, "SET", "k", "0000000000000001|x|1|") },
		"of another type":  func(j joint) { j.s.Cmd(t, "RPUSH", "k", "x") },
		"without a TTL":    func(j joint) { j.s.Cmd(t, "SET", "k", "x") },
		"with a wait hash": func(j joint) { j.s.Cmd(t, "HSET", "{k}:lockwait", "!o", "d") },
		"with a counter that is not to be exceeded": func(j joint) { j.s.Cmd(t, "SET", "fence of k", "9007199254740992") },
		"with a counter of too many digits":         func(j joint) { j.s.Cmd(t, "SET", "fence of k", "1e30") },
		"with a counter that is no number":          func(j joint) { j.s.Cmd(t, "SET", "fence of k", "nan") },
	} {
		t.Run(name, func(t *testing.T) {
			j := newJoint(t)
			make(j)
			keys := []string{"k", "{k}:lockwait", "fence of k"}
			if name == "of another type" { // this is noticed after its counter was raised
				keys = keys[:2]
			}
			before := j.dump(keys)
			j.is("alone", j.sends(taking("k", "o")), 0)
			if after := j.dump(keys); after != before {
				t.Errorf("%q has become %q", before, after)
			}
			j.is("among free ones", j.sends(taking("a", "o"), taking("k", "o"), taking("b", "o")), 2, 0, 2)
			if after := j.dump(keys); after != before {
				t.Errorf("among free ones, %q has become %q", before, after)
			}
		})
	}
}

// dump returns what keys contain.
func (j joint) dump(keys []string) (content string) {
	j.t.Helper()
	for _, key := range keys {
		content += fmt.Sprint(j.s.Cmd(j.t, "DUMP", key), j.s.Cmd(j.t, "PTTL", key))
	}
	return content
}

func TestJoinedReleasesSpareWhatIsNotTheirs(t *testing.T) {
	j := newJoint(t)
	for value, want := range map[string]int64{
		"0000000000000005|o|1|web-7":  1,
		"0000000000000004|o|1|web-7":  1, // was not raised to the token of the lease
		"0000000000000006|o|1|web-7":  0, // a newer token
		"0000000000000005|o|1|web-7+": 0, // somebody waits
		"0000000000000005|o|2|web-7":  0, // the vote of another node
		"0000000000000005|x|1|web-7":  0,
		"hold:o":                      0,
		"x":                           0,
		"":                            0,
	} {
		for _, n := range []int{1, 3} {
			j.s.Cmd(t, "FLUSHALL")
			if value != "" {
				j.s.Cmd(t, "SET", "k", value)
			}
			usual, numbers := []*script.Usual{leaving("k", "o", 5)}, []int64{want}
			for i := 1; i < n; i++ {
				lock := fmt.Sprint("k", i)
				j.s.Cmd(t, "SET", lock, "0000000000000005|o|1|web-7")
				usual, numbers = append(usual, leaving(lock, "o", 5)), append(numbers, 1)
			}
			j.is(fmt.Sprintf("%q, %d joined", value, n), j.sends(usual...), numbers...)
			if want == 1 {
				value = ""
			}
			j.has("k", value)
			if want == 1 {
				value = usual[0].Text
			}
		}
	}
	j.s.Cmd(t, "RPUSH", "list", "x")
	j.s.Cmd(t, "SET", "k", "0000000000000005|o|1|web-7")
	j.is("a list", j.sends(leaving("list", "o", 5)), 0)
	j.is("a list among locks", j.sends(leaving("list", "o", 5), leaving("k", "o", 9999999999999999)), 0, 1)
}

// A server that is out of memory grants nothing, and releases in the same command are executed.
func TestJoinedOutOfMemory(t *testing.T) {
	j := newJoint(t)
	held := j.sends(taking("k", "o"), taking("k1", "o"))
	j.s.Cmd(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	j.s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	j.is("one lock", j.sends(taking("a", "o")), 0)
	j.is("locks and a release",
		j.sends(taking("a", "o"), taking("b", "o"), leaving("k", "o", held[0])), 0, 0, 1)
	j.is("a release", j.sends(leaving("k1", "o", held[1])), 1)
	j.s.Cmd(t, "CONFIG", "SET", "maxmemory", "0")
	if left := j.s.Keys(t, "*"); len(left) != 2 {
		t.Errorf("there is %q, want only the counters", left)
	}
}

// Whatever a user may not write, the answer is that the case is not the usual one, and no lock is left without counter.
func TestJoinedWithoutRights(t *testing.T) {
	for right, want := range map[string][]int64{
		"-mset": {0, 0, 1}, "-set": {0, 0, 1}, "-del": {2, 2, 0},
	} {
		t.Run(right, func(t *testing.T) {
			j := newJoint(t)
			j.s.Cmd(t, "ACL", "SETUSER", "u", "on", ">p", "~*", "+@all", right)
			held := j.sends(taking("k", "o"))
			j.d = dial(t, j.s, redis.DialUsername("u"), redis.DialPassword("p"))
			j.is("joined", j.sends(taking("a", "o"), taking("b", "o"), leaving("k", "o", held[0])), want...)
			if want[0] == 0 && len(j.s.Keys(t, "[ab]")) > 0 {
				t.Error("a lock was taken")
			}
			j.s.Cmd(t, "DEL", "k", "a", "b")
			one := j.sends(taking("k", "o"))
			j.is("one lock", one, want[0])
			if right == "-del" {
				j.is("one release", j.sends(leaving("k", "o", one[0])), 0)
			}
		})
	}
}

func TestReadJoined(t *testing.T) {
	for _, bad := range []struct {
		reply drivers.Reply
		n     int
	}{
		{int64(1), 2},
		{[]drivers.Reply{int64(1)}, 2},
		{[]drivers.Reply{int64(1), "1"}, 2},
		{[]drivers.Reply{int64(1), int64(-1)}, 2},
		{int64(-1), 1},
		{"1", 1},
		{nil, 1},
		{drivers.ServerError("READONLY"), 1},
	} {
		if got, err := script.ReadJoined(bad.reply, bad.n); err == nil {
			t.Errorf("%v of %d: %d", bad.reply, bad.n, got)
		}
	}
	if got, err := script.ReadJoined([]drivers.Reply{int64(7)}, 1); err != nil || !slices.Equal(got, []int64{7}) {
		t.Error(got, err)
	}
}
