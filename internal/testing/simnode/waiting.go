package simnode

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// What queue.lua has as numbers.
const (
	claimWindow = 2000 // ms
	maxPosTTL   = 6000 // ms
	maxSkipped  = 64
)

// line is a lock, or the turn to request one, with its waiters. The Go versions of all scripts that begin with
// queue.lua use it.
type line struct {
	*Node
	lock, waiters, fence, queue, turns string // turns is empty unless the queue is for the turn
	guard                              guard
}

func (l line) clock() int64 { return l.now().Add(l.Skew).UnixMicro() }

func (l line) exists(key string) bool {
	_, ok := l.get(key)
	return ok
}

// pttl returns the reply to PTTL.
func (l line) pttl(key string) int64 {
	switch e, ok := l.get(key); {
	case !ok:
		return -2
	case e.expires.IsZero():
		return -1
	default:
		return l.left(e)
	}
}

// mark records in the lock's value that somebody waits, if it is the value of a lock.
func (l line) mark() {
	cur, _ := l.get(l.lock)
	if p, ours := wire.ParseValue(cur.value); ours && !p.Marked {
		cur.value += "+"
		l.keys[l.lock] = cur
	}
}

// order returns the queue in order.
func (l line) order() []string {
	e, _ := l.get(l.queue)
	return slices.SortedFunc(maps.Keys(e.scores), func(a, b string) int {
		return cmp.Or(cmp.Compare(e.scores[a], e.scores[b]), strings.Compare(a, b))
	})
}

func (l line) drop(o string) {
	q, _ := l.get(l.queue)
	if delete(q.scores, o); len(q.scores) == 0 {
		delete(l.keys, l.queue)
	}
	w, _ := l.get(l.waiters)
	if delete(w.fields, o); len(w.fields) == 0 {
		delete(l.keys, l.waiters)
	}
}

// join returns the ticket of a waiter, and the rank of one that is new, as far as the script returns it: 0 or 1. For
// all others the rank is -1.
func (l line) join(o, label, posttl, ttl, channel, ticket string) (s, rank int64) {
	q, _ := l.get(l.queue)
	rank = -1
	s, waits := q.scores[o]
	if !waits {
		now := l.clock()
		if s = number(ticket); s <= 0 || s >= now {
			s = now
			for _, last := range q.scores {
				s = max(s, last+1)
			}
			if s == now {
				rank = min(int64(len(q.scores)), 1)
			}
		}
		if len(q.scores) == 0 {
			q.scores = map[string]int64{}
		}
		q.scores[o] = s
	}
	q.expires = l.in(2 * maxPosTTL)
	l.keys[l.queue] = q
	deadline := l.clock()/1000 + max(1, min(number(posttl), maxPosTTL))
	l.setField(o, strconv.FormatInt(deadline, 10)+":"+ttl+":"+label+"|"+channel)
	l.prolong(2 * maxPosTTL)
	return s, rank
}

// handOn returns 0, 1 and to whom and its token, or -1.
func (l line) handOn(self string) (r int, h string, c int64) {
	if l.exists(l.lock) || l.turns != "" && l.exists(l.turns) || l.resting() != nil {
		return 0, "", 0
	}
	for range maxSkipped {
		order := l.order()
		if len(order) == 0 {
			return 0, "", 0
		}
		h = order[0]
		w, _ := l.get(l.waiters)
		p := strings.SplitN(w.fields[h], ":", 3)
		l.drop(h)
		if len(p) < 3 {
			continue
		}
		label, channel, ok := strings.Cut(p[2], "|")
		if !ok {
			continue
		}
		ttl := number(p[1])
		if ahead := number(p[0]) - l.clock()/1000; ahead < 0 || ahead > maxPosTTL {
			continue
		}
		if h != self {
			if channel != "" && l.publish(channel, h) == 0 {
				continue
			}
			ttl = min(ttl, claimWindow)
		}
		if l.turns != "" {
			l.keys[l.turns] = entry{value: h + " " + channel, expires: l.in(claimWindow)}
			return 1, h, 0
		}
		c = l.mint(1, 0)
		others := ""
		if l.exists(l.queue) {
			others = "+"
		}
		l.keys[l.lock] = entry{value: counterText(c) + "|" + h + "|1|" + label + others, expires: l.in(ttl)}
		return 1, h, c
	}
	return -1, "", 0
}

func wake(r int, left int64) int64 {
	switch {
	case r == -1:
		return 0
	case left >= 0:
		return min(claimWindow, left+1)
	}
	return claimWindow
}

func (n *Node) enqueue(l line, args []string) drivers.Reply {
	o, _, label := split(args[0])
	p := strings.SplitN(args[1], ":", 4)
	ttl, posttl, ticket, channel := p[0], p[1], p[2], p[3]
	cur, held := l.get(l.lock)
	if c, _ := mine(cur.value, args[0]); c > 0 {
		l.drop(o)
		if rests := l.resting(); rests != nil {
			return rests
		}
		return []drivers.Reply{int64(1), c, l.pttl(l.lock)}
	}
	if l.buried(o) != "" {
		return []drivers.Reply{int64(-1)}
	}
	if !held {
		if rests := l.resting(); rests != nil {
			return rests
		}
	}
	holder, _ := wire.ParseValue(cur.value)
	left := l.pttl(l.lock)
	switch {
	case left == -1:
		l.drop(o)
		return []drivers.Reply{int64(-2)}
	case held && posttl == "0":
		return []drivers.Reply{int64(0), left, int64(-1), wake(0, left), int64(0), holder.Label}
	case !held && !l.exists(l.queue):
		c := l.mint(1, 0)
		l.keys[l.lock] = entry{value: counterText(c) + args[0], expires: l.after(ttl)}
		return c
	}
	s, rank := l.join(o, label, posttl, ttl, channel, ticket)
	r := 0
	if held {
		l.mark()
	} else {
		var h string
		var c int64
		if r, h, c = l.handOn(o); h == o {
			return c
		}
		left = l.pttl(l.lock)
	}
	if posttl == "0" {
		l.drop(o)
		return []drivers.Reply{int64(0), left, int64(-1), wake(r, left), int64(0), holder.Label}
	}
	if !held || rank < 0 {
		rank = int64(slices.Index(l.order(), o))
	}
	return []drivers.Reply{int64(0), left, rank, wake(r, left), s, holder.Label}
}

func (n *Node) claim(l line, args []string) drivers.Reply {
	cur, _ := l.get(l.lock)
	c, _ := mine(cur.value, args[0])
	if c == 0 {
		return []drivers.Reply{int64(0)}
	}
	if rests := l.resting(); rests != nil {
		return rests
	}
	left := l.pttl(l.lock)
	if ttl := number(args[1]); left < ttl {
		l.expire(l.lock, l.in(ttl))
		left = ttl
	}
	return []drivers.Reply{int64(1), c, left}
}

func (n *Node) handover(l line, args []string) drivers.Reply {
	o, _, _ := split(args[0])
	p := strings.Split(args[1], ":")
	if p[2] == anyCounter || p[0] != "0" {
		l.drop(o)
	}
	r := l.undo(args[0], p[0], p[1], p[2])
	return r + l.again()
}

// again hands the lock on and returns what releases add to their reply.
func (l line) again() int64 {
	switch given, _, _ := l.handOn(""); given {
	case 1:
		return 16
	case -1:
		return 8
	}
	return 0
}
