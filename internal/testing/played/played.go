// Package played has short audit logs for the tests of those that judge them.
package played

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/middleware/audit"
)

// Epoch is when the logs begin.
var Epoch = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// Log is the log of one client.
type Log struct {
	Client int
	Text   string
}

// Play makes logs from lines like these:
//
//	0-2 a lock 7 until 20      client a asks at 0 and has the lock at 2 ms, with token 7, until 20
//	5-6 a extend until 30      or: share, for a downgrade
//	7-8 a unlock               or: unlock notheld, unlock unknown
//	9 a done                   it is told of its loss; or: done taken, done until 9
//
// Each client has a log of its own. Its lines are about its last lease, or "of a7", the one with that grant. More words
// of lock are those of [audit.Line]: "handed", "kind shared", "grant g", "tokens 3 from 5", "limit 2 slot 1", "key j",
// "store r", "upgrades a7". "9 a missing" leaves a line out, "9 a drop" says that one was dropped, and "9 a killed"
// leaves out the end of the log, which is an hour later unless "9 a closes". "9 a sleeps 50" stops its monotonic clock
// for 50 ms: the times of its lines are by that.
func Play(t testing.TB, lines ...string) (logs []Log) {
	t.Helper()
	clients := map[string]*client{}
	var names []string
	for _, line := range lines {
		f := strings.Fields(line)
		c := clients[f[1]]
		if c == nil {
			c = &client{t: t, name: f[1], leases: map[string]audit.Line{}, closes: time.Hour}
			clients[f[1]], names = c, append(names, f[1])
			c.write(audit.Line{Event: audit.Start, Label: "host-" + f[1] + ":1"})
		}
		c.play(f)
	}
	for _, name := range names {
		c := clients[name]
		if !c.killed {
			c.write(audit.Line{Event: audit.Close, AskedMono: c.closes, AnsweredMono: c.closes})
		}
		logs = append(logs, Log{int(name[0] - 'a'), c.text.String()})
	}
	return logs
}

type client struct {
	t      testing.TB
	name   string
	text   strings.Builder
	seq    uint64
	lease  audit.Line            // what all lines of the lease have in common
	leases map[string]audit.Line // by their grants
	slept  time.Duration
	closes time.Duration
	until  time.Duration
	killed bool
}

func (c *client) write(l audit.Line) {
	c.seq++
	l.Version, l.Process, l.Seq = audit.Version, "process-"+c.name, c.seq
	l.Asked, l.Answered = Epoch.Add(l.AskedMono+c.slept), Epoch.Add(l.AnsweredMono+c.slept)
	if l.UntilMono > 0 {
		l.Until = Epoch.Add(l.UntilMono + c.slept)
	}
	text, err := json.Marshal(l)
	if err != nil {
		c.t.Fatal(err)
	}
	fmt.Fprintf(&c.text, "%s\n", text)
}

// after returns the word after another one, or "".
func after(f []string, word string) string {
	for i := range f[:len(f)-1] {
		if f[i] == word {
			return f[i+1]
		}
	}
	return ""
}

func (c *client) ms(word string) time.Duration {
	if word == "" {
		return 0
	}
	d, err := time.ParseDuration(word + "ms")
	if err != nil {
		c.t.Fatal(err)
	}
	return d
}

func (c *client) play(f []string) {
	from, to, call := strings.Cut(f[0], "-")
	if !call {
		to = from
	}
	l := c.lease
	if of := after(f, "of"); of != "" {
		l = c.leases[of]
	}
	l.Outcome = audit.OK
	for word, o := range map[string]audit.Outcome{"notheld": audit.NotHeld, "unknown": audit.Unknown, "held": audit.Held} {
		if after(append(f, "x"), word) != "" {
			l.Outcome = o
		}
	}
	until := c.ms(after(f, "until"))
	switch f[2] {
	case "missing":
		c.seq++
		return
	case "sleeps":
		c.slept += c.ms(f[3])
		return
	case "closes":
		c.closes = c.ms(from)
		return
	case "killed":
		c.killed = true
		return
	case "drop":
		c.seq++
		c.write(audit.Line{Event: audit.Dropped, Missing: 1})
		return
	case "lock", "trylock":
		n := func(word string) int { n, _ := strconv.Atoi(after(f, word)); return n }
		l = audit.Line{Event: audit.Acquired, Kind: audit.Plain, Key: "k", Store: "s", Outcome: l.Outcome}
		l.Try = f[2] == "trylock"
		if l.Outcome != audit.OK {
			l.Event = audit.Refused
			break
		}
		l.Fence = uint64(n("lock") + n("trylock"))
		l.First, l.Tokens, l.Limit = l.Fence, max(1, n("tokens")), n("limit")
		l.Grant = c.name + strconv.Itoa(int(l.Fence))
		if grant := after(f, "grant"); grant != "" {
			l.Grant = grant
		}
		if kind := after(f, "kind"); kind != "" {
			l.Kind = audit.Kind(kind)
		}
		if key := after(f, "key"); key != "" {
			l.Key = key
		}
		if store := after(f, "store"); store != "" {
			l.Store = store
		}
		if first := n("from"); first > 0 {
			l.First, l.Event = uint64(first), audit.HandedOver
		}
		if l.Limit > 0 {
			l.Slots = []int{n("slot")}
		}
		c.until, c.lease = until, audit.Line{
			Kind: l.Kind, Key: l.Key, Store: l.Store, Grant: l.Grant, Fence: l.Fence, Limit: l.Limit, Slots: l.Slots,
		}
		c.leases[l.Grant] = c.lease
		l.From = after(f, "upgrades")
	case "extend", "share":
		l.Event = audit.Extended
		if f[2] == "share" {
			c.lease.Kind, l.Kind = audit.Shared, audit.Shared
		}
		c.until = until
	case "verify":
		l.Event = audit.Verified
	case "unlock":
		l.Event = audit.Released
	case "force":
		l = audit.Line{Event: audit.Forced, Key: "k", Store: "s", Outcome: audit.OK}
		n, _ := strconv.Atoi(f[3])
		l.Fence = uint64(n)
		if f[len(f)-1] == "unknown" {
			l.Outcome = audit.Unknown
		}
	case "done":
		l.Event, l.Outcome, l.Reason = audit.Lost, "", "expired"
		if until == 0 {
			until = c.until
		}
		if f[len(f)-1] == "taken" {
			until, l.Reason = min(c.until, c.ms(to)), "taken over"
		}
	default:
		c.t.Fatal(f)
	}
	l.AskedMono, l.AnsweredMono, l.UntilMono = c.ms(from), c.ms(to), until
	l.DeadlineMono = c.ms(after(f, "deadline"))
	c.write(l)
}

// Case is a few lines, and what is wrong with them.
type Case struct {
	Lines []string
	Rules []string // that are broken, in alphabetical order
	Model bool     // no order of the holds is legal
}

// Cases are logs of plain locks.
var Cases = map[string]Case{
	"nothing": {[]string{"0-2 a lock 7 until 20", "5-6 a unlock", "1-7 b lock 8 until 30",
		"40-41 c lock 9 until 60"}, nil, false},
	"a hold that ends by itself": {[]string{"0-2 a lock 7 until 20", "1-21 b lock 8 until 40", "19 a done",
		"39 b done"}, nil, false},
	"a release whose answer was lost": {[]string{"0-2 a lock 7 until 90", "5-6 a unlock unknown",
		"1-30 b lock 8 until 40"}, nil, false},
	"two holders": {[]string{"0-2 a lock 7 until 20", "3-5 b lock 8 until 30", "19 a done"},
		[]string{"ME"}, true},
	"two holders, the second short": {[]string{"0-2 a lock 7 until 50", "3-5 b lock 8 until 30",
		"40-45 c lock 9 until 70"}, []string{"ME", "ME"}, true},
	"a hold that was extended meanwhile": {[]string{"0-2 a lock 7 until 20", "3-5 a extend until 50",
		"20-25 b lock 8 until 60"}, []string{"ME"}, true},
	"a token twice": {[]string{"0-2 a lock 7 until 20", "3-4 a unlock", "3-6 b lock 7 until 20",
		"7-8 b unlock"}, []string{"UNIQ"}, true},
	"a smaller token later": {[]string{"0-2 a lock 7 until 20", "3-4 a unlock", "5-6 b lock 6 until 20"},
		[]string{"HO", "RT"}, true},
	"a smaller token later, attempts overlap": {
		[]string{"0-2 a lock 7 until 20", "3-4 a unlock", "1-6 b lock 6 until 20"}, []string{"HO"}, true},
	"extended after another": {
		[]string{"0-2 a lock 7 until 20", "30-31 b lock 8 until 50", "32-33 b unlock", "35-36 a extend until 50"},
		// The hold of a goes on before and after the hold of b.
		[]string{"ME", "VER"}, true},
	"released after another": {[]string{"0-2 a lock 7 until 20", "30-31 b lock 8 until 50", "32-33 b unlock",
		"35-36 a unlock"}, []string{"VER"}, true},
	"verified before another": {[]string{"0-2 a lock 7 until 20", "5-35 a verify",
		"20-31 b lock 8 until 50"}, nil, false},
	"verified after another": {[]string{"0-2 a lock 7 until 20", "20-31 b lock 8 until 50", "35-36 a verify"},
		[]string{"CERT"}, true},
	"not verified after another": {[]string{"0-2 a lock 7 until 20", "20-31 b lock 8 until 50",
		"35-36 a verify unknown"}, nil, false},
	"found gone too early": {[]string{"0-2 a lock 7 until 20", "5-6 a unlock notheld"}, []string{"LOST"}, false},
	"told too early":       {[]string{"0-2 a lock 7 until 20", "6 a done taken"}, []string{"LOST"}, false},
	"told in time": {[]string{"0-2 a lock 7 until 20", "20-21 a unlock notheld",
		"15-19 b lock 8 until 60"}, []string{"ME"}, true},
	"told too late":       {[]string{"0-2 a lock 7 until 20", "21 a done"}, []string{"DONE"}, false},
	"late to come back":   {[]string{"0-12 a trylock held deadline 10"}, []string{"PROMPT"}, false},
	"Unlock has a second": {[]string{"0-2 a lock 7 until 2000", "3-1003 a unlock deadline 10"}, nil, false},
	"Unlock takes longer": {[]string{"0-2 a lock 7 until 2000", "3-1005 a unlock deadline 10"},
		[]string{"PROMPT"}, false},
}
