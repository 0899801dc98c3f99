package doctor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/settings"
)

// reach checks whether the node answers. If not, no further checks are made.
func (p *checkup) reach(ctx context.Context) bool {
	const check = "reachable"
	replies, err := p.ask(ctx, drivers.Command{"PING"})
	if err != nil {
		p.unreachable(ctx, err)
		return false
	}
	e, refused := refusal(replies[0])
	// Any reply will do. Locks do not need PING, and other checks explain better why a server refuses writes.
	right := lackedRight(e, "ping")
	mayNotPing := e.Code() == "NOPERM" && (right == "+ping" || right == "")
	if !refused || mayNotPing || e.Code() == "MISCONF" || unknownCommand(e) && containsFold(e, "PING") {
		p.ok(check, "it answers")
		return true
	}
	c := Refusal(e, p.Username)
	if right != "" { // the client of a Redis Cluster has to ask for the servers first
		c.Fix = "ACL SETUSER " + p.user() + " " + right
	}
	p.fail(check, c.Fix, "%s (%s)", c.Text, Short(e))
	return false
}

// deployment says which servers the other checks are about, if there are several.
func (p *checkup) deployment() {
	const check = "deployment"
	switch p.Dial.Topology() {
	case drivers.SentinelMaster:
		p.ok(check, "this is the master that the sentinels name; replicas and sentinels are not examined")
	case drivers.RedisCluster:
		p.warn(check, "look at the settings of each master; they should be the same",
			"a cluster: version, role and settings are those of one of its nodes, and the others are not examined")
	}
}

func (p *checkup) unreachable(ctx context.Context, err error) {
	const check = "reachable"
	c, ok := OfSentinel(p.Dial, err)
	if !ok {
		c, ok = ConnectError(p.Dial, err)
	}
	if !ok {
		c, ok = Probe(ctx, p.Dial, p.Username)
	}
	switch {
	case ok:
		p.fail(check, c.Fix, "%s (%v)", c.Text, err)
	case errors.Is(err, errSilent):
		p.fail(check, "if it accepts connections, the process hangs or is stopped: check the process, its swapping "+
			"and SLOWLOG; "+
			"otherwise a firewall or the network drops what is sent", "%v", err)
	case errors.Is(err, drivers.ErrNotSent) && p.Dial.Topology() == drivers.SentinelMaster:
		p.fail(check, "are the sentinels up, is the name of the master theirs, and does the master that they name "+
			"answer? See SENTINEL MASTERS on one of them", "no connection: %v", err)
	case errors.Is(err, drivers.ErrNotSent):
		p.fail(check, "is redis-server up, and are address, port, TLS and firewall right?", "no connection: %v", err)
	default:
		p.fail(check, "a proxy in between may close connections, or the server has just been stopped: run it again",
			"%v", err)
	}
}

const (
	samples = 50
	// sampling limits the time that the samples take on a slow link.
	sampling = 2 * time.Second
	minimum  = 5
)

// latency measures round trips with TIME. The fastest answer gives the most exact reading of the node's clock.
func (p *checkup) latency(ctx context.Context) {
	const check = "latency"
	var times []time.Duration
	for start := time.Now(); len(times) < samples && (time.Since(start) < sampling || len(times) < minimum); {
		sent := time.Now()
		replies, err := p.ask(ctx, drivers.Command{"TIME"})
		took := time.Since(sent)
		if err != nil {
			p.fail(check, "the connection is not reliable: check the network, and slow commands of the server "+
				"(SLOWLOG, LATENCY DOCTOR)",
				"of %d questions one was not answered: %v", len(times)+1, err)
			return
		}
		if now, ok := settings.ReadTime(replies[0]); ok && (p.clock.Node == "" || took/2 < p.clock.Error) {
			p.clock = settings.ReadClock(p.Name, now, sent, took)
		}
		times = append(times, took)
	}
	slices.Sort(times)
	p50, p99 := times[len(times)/2], times[len(times)*99/100]
	bound, what := min(p.e.Timeout, p.e.TTL/3), "the lesser of the timeout and a third of the TTL"
	if p.e.Redlock {
		bound, what = min(p.e.Budget, p.e.TTL/2), "the lesser of the budget and half of the TTL"
	}
	const fix = "put clients nearer to the server, or find what makes it slow (SLOWLOG, LATENCY DOCTOR, swapping, a " +
		"busy host); or use a longer TTL"
	text := "round trips: p50 %v, p99 %v; the bound is %v, " + what
	switch args := []any{settings.Round(p50), settings.Round(p99), bound.Round(time.Millisecond)}; {
	case p99 > bound/2:
		p.fail(check, fix, text, args...)
	case p99 > bound/10:
		p.warn(check, fix, text, args...)
	default:
		p.ok(check, text, args...)
	}
}
