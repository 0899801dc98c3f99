// Package sim plays whole deployments in virtual time: real Clients over real backends, waiting included, on simulated
// nodes behind a network that loses, delays and repeats, while nodes crash and hang and clients stall. A seed decides
// everything that is drawn; the history of each episode is judged by internal/judge. docs/testing.md
// says what a run shows, and what a seed fixes.
package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Profile says which faults may come.
type Profile string

// The profiles.
const (
	// Model has only faults in which the library promises exclusion.
	Model Profile = "model"
	// Forget lets nodes lose their data and answer again at once.
	Forget Profile = "forget"
	// Guard lets nodes lose their data, or go back to older data, and answer again at once. Clients have the restart
	// guard, so exclusion is promised.
	Guard Profile = "guard"
	// Unguarded has the same faults, and no guard.
	Unguarded Profile = "unguarded"
	// Drift lets the clocks of nodes run up to 15 % too fast.
	Drift Profile = "drift"
)

// fault is a kind of fault.
type fault int

const (
	// To a batch of commands, or its replies.
	requestLost fault = iota
	replyLost
	slow
	late  // the client is told that it failed, and it is executed later
	twice // and executed again later
	unsent
	refused
	scriptsFlushed
	// To published messages.
	messageLost
	messageLate
	subscribersCut
	// To nodes.
	crashed   // and back with its data
	forgot    // and back without; see restart
	hung      // like a stopped process
	separated // from one client, in one direction or both
	// To clients.
	paused    // its messages and its workers wait
	died      // it is cut off for ever
	abandoned // a lock was left to expire
	careless  // a holder stalled between reading and writing, and did not look at its lease again
	faults
)

var kinds = [faults]struct {
	name string
	// chance is per message, or per second for what happens to nodes and clients, or per hold for the last two.
	chance float64
}{
	requestLost: {"request lost", .005}, replyLost: {"reply lost", .01}, slow: {"slow", .01},
	late:  {"executed late", .01},
	twice: {"executed twice", .02}, unsent: {"not sent", .005}, refused: {"refused", .004},
	scriptsFlushed: {"scripts flushed", .003},
	messageLost:    {"message lost", .05}, messageLate: {"message late", .05}, subscribersCut: {"subscribers cut", .4},
	crashed: {"node crashed", .4}, forgot: {"node forgot", .15}, hung: {"node hung", .4},
	separated: {"client cut off from a node", .6},
	paused:    {"client paused", .4}, died: {"client died", .15}, abandoned: {"lock abandoned", .05},
	careless: {"holder stalled", .01},
}

// Options are what a seed comes to.
type Options struct {
	Seed    uint64
	Profile Profile

	Nodes int // several: Redlock, or those of a Cluster
	Personality
	Clients int
	Workers int // of each client
	Keys    int
	OneSlot bool          // the keys share a hash slot, and so a counter
	Length  time.Duration // of the part with faults
	MinTTL  time.Duration
	MaxTTL  time.Duration
	Latency time.Duration // one way, at most
	Timeout time.Duration // of an exchange
	Skew    time.Duration // of nodes' clocks, at most
	Drift   float64       // of nodes' clocks, at most
	Factors [faults]int   // 0, 1 or 4 times the usual chance

	Verifies bool // holders verify their leases before they write

	Trace bool // log all that happens
}

// Draw returns the options of a seed.
func Draw(seed uint64, p Profile) Options {
	r := rand.New(rand.NewPCG(seed, 1))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(r.Int64N(int64(b-a)+1)) }
	o := Options{
		Seed: seed, Profile: p,
		Nodes:   []int{1, 1, 3, 3, 5}[r.IntN(5)],
		Clients: 2 + r.IntN(4), Workers: 1 + r.IntN(2), Keys: 1 + r.IntN(2),
		Length:  between(1500*time.Millisecond, 4*time.Second),
		MinTTL:  between(200*time.Millisecond, 500*time.Millisecond),
		Latency: []time.Duration{200 * time.Microsecond, 2 * time.Millisecond, 10 * time.Millisecond}[r.IntN(3)],
		Timeout: between(100*time.Millisecond, 500*time.Millisecond),
		Skew:    []time.Duration{0, time.Millisecond, 10 * time.Millisecond}[r.IntN(3)],
		Drift:   []float64{0, .002, .008}[r.IntN(3)],
	}
	o.MaxTTL = between(o.MinTTL, 2*time.Second)
	for k := range o.Factors {
		o.Factors[k] = []int{0, 0, 1, 1, 4}[r.IntN(5)]
	}
	for _, k := range []fault{forgot, died} { // they take from what can be checked of clean-up
		o.Factors[k] = []int{0, 0, 0, 0, 1, 4}[r.IntN(6)]
	}
	if r.IntN(8) == 0 { // many at once, whose commands are joined
		o.Workers, o.Keys = 8, 8
	}
	o.OneSlot = o.Keys > 1 && r.IntN(3) > 0
	o.drawPersonality(rand.New(rand.NewPCG(seed, 2)))
	o.Verifies = rand.New(rand.NewPCG(seed, 3)).IntN(3) == 0
	switch p {
	case Guard, Unguarded:
		o.Factors[forgot], o.Factors[died] = 2, 0
		o.Factors[crashed] = min(o.Factors[crashed], 1) // nodes rest after each crash, and have to vote sometimes
		o.Length *= 3
	case Forget:
		o.Factors[forgot], o.Factors[died] = 20, 0
	case Drift:
		o.Drift = .15
	}
	return o
}

func (o Options) String() string {
	var on []string
	for k, f := range o.Factors {
		if f > 0 {
			on = append(on, fmt.Sprintf("%s ×%d", kinds[k].name, f))
		}
	}
	return fmt.Sprintf("%s: %d nodes%v, %d clients × %d, %d keys (in one slot: %v), %v long, TTL %v to %v, "+
		"latency %v, timeout %v, skew %v, drift %v, verifies: %v; %s",
		o.Profile, o.Nodes, o.Personality, o.Clients, o.Workers, o.Keys, o.OneSlot,
		o.Length.Round(time.Millisecond),
		o.MinTTL.Round(time.Millisecond),
		o.MaxTTL.Round(time.Millisecond), o.Latency, o.Timeout.Round(time.Millisecond), o.Skew, o.Drift, o.Verifies,
		strings.Join(on, ", "))
}

// recovers reports whether nodes that forget may have older data afterwards.
func (o *Options) recovers() bool { return o.Profile == Guard || o.Profile == Unguarded }

// guard is the longest TTL that clients may use under the restart guard. 0: there is no guard.
func (o *Options) guard() time.Duration {
	if o.Profile != Guard {
		return 0
	}
	return o.MaxTTL.Truncate(time.Millisecond) + time.Millisecond // TTLs are rounded
}

// rest is how long a node rests after it has forgotten: docs/safety.md.
func (o *Options) rest() time.Duration {
	if o.Profile != Guard {
		return 0
	}
	return o.guard() + o.guard()/50 + 2*time.Second + time.Millisecond
}

// longKey is locked with a TTL so long that nothing is cleaned up by expiry.
const (
	longKey = "long"
	longTTL = 30 * time.Second
)

// keys are what is locked. Where a client may die, or a node forgets, nobody can be asked to clean up after it.
func (o Options) keys() (keys []string) {
	for i := range o.Keys {
		key := string(rune('a' + i))
		if o.OneSlot {
			key = "{slot}" + key
		}
		keys = append(keys, key)
	}
	if o.Factors[died] == 0 && o.Factors[forgot] == 0 {
		keys = append(keys, longKey)
	}
	return keys
}
