package doctor

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/golocker/locker/drivers"
)

// reach finds out whether the node answers at all. If not, there is no point in asking for more.
func (p *patient) reach(ctx context.Context) bool {
	const check = "reachable"
	replies, err := p.ask(ctx, drivers.Command{"PING"})
	switch {
	case errors.Is(err, errSilent):
		p.fail(check, "if connections are accepted, the process hangs or is stopped: look at it, and at what it swaps or computes (SLOWLOG); "+
			"otherwise a firewall or the network drops what is sent", "%v", err)
		return false
	case errors.Is(err, drivers.ErrNotSent):
		p.fail(check, "is redis-server up, and are address, port, TLS and firewall right?", "no connection: %v", err)
		return false
	case err != nil:
		p.fail(check, "what is behind this address may not be a Redis, or a proxy in between closes connections", "%v", err)
		return false
	}
	e, refused := refusal(replies[0])
	switch code := e.Code(); {
	case !refused, code == "NOPERM":
		p.ok(check, "it answers")
		return true
	case code == "NOAUTH":
		p.fail(check, "give username and password, in the URL, by LOCKER_REDIS_PASSWORD or a password_file", "it wants a password: %v", e)
	case code == "WRONGPASS", code == "ERR" && containsFold(e, "password"), code == "ERR" && containsFold(e, "AUTH"):
		p.fail(check, "check user name and password of "+strconv.Quote(p.user())+"; on the server, ACL LIST shows the users",
			"it refuses the password: %v", e)
	case code == "LOADING":
		p.fail(check, "wait until it has loaded its data; if it has just restarted, see docs/safety.md, E1", "it is loading: %v", e)
	case code == "ERR" && containsFold(e, "max number of clients"):
		p.fail(check, "raise maxclients, or find who opens so many connections (CLIENT LIST)", "it takes no more connections: %v", e)
	default:
		p.fail(check, "see the server's log", "it refuses to serve: %v", e)
	}
	return false
}

const (
	samples = 50
	// sampling bounds the time that they take, on a link that is slow.
	sampling = 2 * time.Second
	minimum  = 5
)

// latency measures round trips, and reads the clock on the way: of the quickest answer it is known best when it was read.
func (p *patient) latency(ctx context.Context) {
	const check = "latency"
	var times []time.Duration
	for start := time.Now(); len(times) < samples && (time.Since(start) < sampling || len(times) < minimum); {
		sent := time.Now()
		replies, err := p.ask(ctx, drivers.Command{"TIME"})
		took := time.Since(sent)
		if err != nil {
			p.fail(check, "the connection is not reliable: look at the network, and at what the server does now and then (SLOWLOG, LATENCY DOCTOR)",
				"of %d questions one was not answered: %v", len(times)+1, err)
			return
		}
		if now, ok := clockOf(replies[0]); ok && (p.rtt == 0 || took < p.rtt) {
			p.ahead, p.rtt = now.Sub(sent.Add(took/2)), took
		}
		times = append(times, took)
	}
	slices.Sort(times)
	p50, p99 := times[len(times)/2], times[len(times)*99/100]
	bound, what := min(p.e.Timeout, p.e.TTL/3), "of the timeout and a third of the TTL, whichever is less"
	if p.e.Redlock {
		bound, what = min(p.e.Budget, p.e.TTL/2), "of the budget and half of the TTL, whichever is less"
	}
	const fix = "put clients nearer to the server, or find what makes it slow (SLOWLOG, LATENCY DOCTOR, swapping, a busy host); or use a longer TTL"
	text := "round trips: p50 %v, p99 %v; the bound is %v, " + what
	switch args := []any{round(p50), round(p99), bound.Round(time.Millisecond)}; {
	case p99 > bound/2:
		p.fail(check, fix, text, args...)
	case p99 > bound/10:
		p.warn(check, fix, text, args...)
	default:
		p.ok(check, text, args...)
	}
}

// clockOf reads the reply to TIME.
func clockOf(reply drivers.Reply) (time.Time, bool) {
	r, _ := reply.([]drivers.Reply)
	if len(r) != 2 {
		return time.Time{}, false
	}
	seconds, ok1 := r[0].(string)
	micros, ok2 := r[1].(string)
	s, err1 := strconv.ParseInt(seconds, 10, 64)
	us, err2 := strconv.ParseInt(micros, 10, 64)
	return time.Unix(s, us*1000), ok1 && ok2 && err1 == nil && err2 == nil
}

func round(d time.Duration) time.Duration {
	if d < time.Millisecond {
		return d.Round(time.Microsecond)
	}
	return d.Round(10 * time.Microsecond)
}
