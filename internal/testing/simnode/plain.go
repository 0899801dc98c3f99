package simnode

import (
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// The scripts for locks that nobody queues for.

// mint draws a counter; see mint.lua.
func (l line) mint(quantum, hint int64) int64 {
	now := l.clock()
	if hint > now+time.Hour.Microseconds() {
		hint = 0
	}
	last := l.counter(l.fence)
	if last >= 1<<53-1 {
		last = 0
	}
	c := max(last+1, now-now%quantum, hint+1)
	l.keys[l.fence] = entry{value: counterText(c)}
	return c
}

func (n *Node) acquire(l line, args []string) drivers.Reply {
	text := args[0]
	if cur, held := l.get(l.lock); held {
		c, k := mine(cur.value, text)
		switch {
		case c > 0:
			return c
		case cur.expires.IsZero():
			return int64(-2)
		case k > 0:
			return -2 - k
		}
		shown := cur.value
		p, ours := wire.ParseValue(cur.value)
		if ours {
			shown = p.Owner
		}
		return []drivers.Reply{int64(0), n.left(cur), l.counter(l.fence), shown[:min(8, len(shown))], p.Label}
	}
	mark := ""
	if l.exists(l.waiters) {
		if owner, _, _ := split(text); l.buried(owner) != "" {
			return int64(-1)
		}
		mark = "+"
	}
	if rests := l.resting(); rests != nil {
		return rests
	}
	c := l.mint(number(args[2]), number(args[3]))
	l.keys[l.lock] = entry{value: counterText(c) + text + mark, expires: n.after(args[1])}
	return c
}

func (n *Node) raise(l line, args []string) drivers.Reply {
	cur, _ := l.get(l.lock)
	c, k := mine(cur.value, args[0])
	if c == 0 {
		return 32 * k
	}
	token := number(args[1])
	if c > token {
		return int64(0)
	}
	if c < token {
		l.raiseTo(token)
	}
	return int64(1)
}

// raiseTo raises the counter in the lock's value to token. The counter of the slot is at least as great.
func (l line) raiseTo(token int64) {
	if l.counter(l.fence) < token {
		l.keys[l.fence] = entry{value: counterText(token)}
	}
	cur := l.keys[l.lock]
	cur.value = counterText(token) + cur.value[counterDigits:]
	l.keys[l.lock] = cur
}

func (n *Node) extend(l line, args []string) drivers.Reply {
	cur, held := l.get(l.lock)
	c, k := mine(cur.value, args[0])
	if c == 0 {
		owner, _, _ := split(args[0])
		switch {
		case k > 0:
			return 32 * k
		case held && cur.value != "hold:"+owner:
			return int64(4)
		}
		return int64(0)
	}
	token := number(args[2])
	if c > token {
		return int64(3)
	}
	if c < token {
		l.raiseTo(token)
	}
	if end := n.after(args[1]); cur.expires.Before(end) {
		l.expire(l.lock, end)
	}
	return int64(1)
}

func (l line) expire(key string, end time.Time) {
	e := l.keys[key]
	e.expires = end
	l.keys[key] = e
}

func (n *Node) release(l line, args []string) drivers.Reply {
	p := strings.SplitN(args[1], ":", 4)
	tomb, rest, token, channel := p[0], p[1], p[2], p[3]
	r := l.undo(args[0], tomb, rest, token)
	if channel != "" && rest == "0" && (r == 1 || r == 3) {
		n.publish(channel, "free")
	}
	return r
}

// undo is the part that all releases share; see undo.lua.
func (l line) undo(text, tomb, rest, token string) (r int64) {
	o, node, _ := split(text)
	cur, held := l.get(l.lock)
	c, k := mine(cur.value, text)
	if c > 0 || k > 0 && tomb == "0" {
		delete(l.keys, l.lock)
		r = 1
		if number(cur.value[:counterDigits]) > number(token) {
			r = 3
		}
		if rest != "0" {
			l.keys[l.lock] = entry{value: "hold:" + o, expires: l.after(rest)}
		}
		r += 32 * k
	} else if k == 0 && (held && cur.value != "hold:"+o || !held && l.buried(o) == "f") {
		r = 4
	}
	if tomb != "0" {
		deleted := "d" + node
		if r%4 == 0 && l.buried(o) == deleted {
			return 2
		}
		kind := "x"
		if r == 1 {
			kind = deleted
		}
		l.bury(o, kind, number(tomb))
	}
	return r
}
