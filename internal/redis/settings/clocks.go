package settings

import (
	"fmt"
	"strings"
	"time"
)

const (
	// Tokens of nodes that differ by more than the quantum cost a round trip.
	clocksAgree = 65 * time.Millisecond
	// A node that lost its counters issues tokens by its clock.
	clocksWrong = time.Second
)

// Clock is a reading of a server's clock.
type Clock struct {
	Node  string
	Ahead time.Duration // of the local clock
	Error time.Duration // Ahead is wrong by at most that much: half of a round trip
}

// ReadClock returns the reading of a clock that was asked at sent and has answered after took.
func ReadClock(node string, clock, sent time.Time, took time.Duration) Clock {
	return Clock{node, clock.Sub(sent.Add(took / 2)), took / 2}
}

// Clocks compares the clocks of the nodes of a Redlock. It returns false if there are fewer than two.
func Clocks(readings []Clock) (Finding, bool) {
	if len(readings) < 2 {
		return Finding{}, false
	}
	slow, fast := readings[0], readings[0]
	var off []string
	for _, c := range readings {
		if c.Ahead < slow.Ahead {
			slow = c
		}
		if c.Ahead > fast.Ahead {
			fast = c
		}
		off = append(off, fmt.Sprintf("%s %+v", c.Node, c.Ahead.Round(time.Millisecond)))
	}
	f := Finding{Check: "clocks", Level: Warn,
		Fix: "run NTP (chrony) on the servers: step their clocks while no locks are held, never forward otherwise"}
	apart, unsure := fast.Ahead-slow.Ahead, fast.Error+slow.Error
	is := fmt.Sprintf("%s is %v ahead of %s, give or take %v", fast.Node, apart.Round(time.Millisecond), slow.Node,
		unsure.Round(time.Millisecond))
	switch {
	case apart-unsure > clocksWrong:
		f.Promise = clockwise
		f.Text = fmt.Sprintf("%s: should a node lose its data, tokens could go back (seen from here: %s)", is,
			strings.Join(off, ", "))
	case apart-unsure > clocksAgree:
		f.Text = is + ": locks cost a second round trip"
	default:
		f.Level, f.Fix = OK, ""
		f.Text = fmt.Sprintf("they agree to %v, give or take %v", Round(apart), Round(unsure))
	}
	return f, true
}

// Round rounds d for people.
func Round(d time.Duration) time.Duration {
	if d < time.Millisecond {
		return d.Round(time.Microsecond)
	}
	return d.Round(10 * time.Microsecond)
}
