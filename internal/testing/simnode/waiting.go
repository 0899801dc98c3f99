package simnode

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/golocker/locker/drivers"
)

// What queue.lua has as numbers.
const (
	claimWindow = 2000 // ms
	maxLease    = 6000 // ms
	maxSkipped  = 64
)

// line is a lock, or the turn to request one, with its waiters. The Go versions of all scripts that begin with
// queue.lua use it.
type line struct {
	*Node
	lock, fence, queue, waiters, turns string // turns is empty unless the queue is for the turn
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

func (l line) mint() int64 {
	c := max(l.counter(l.fence)+1, l.clock())
	l.setCounter(l.fence, c)
	return c
}

func (l line) tokenOfHolder() int64 {
	if f := l.counter(l.fence); f > 0 {
		return f
	}
	return l.mint()
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

// join returns the ticket, and of who has just come the rank as far as it is told: 0, or 1; -1: not told.
func (l line) join(o, lease, ttl, channel, ticket string) (s, rank int64) {
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
			delete(l.keys, l.waiters)
		}
		q.scores[o] = s
	}
	w, _ := l.get(l.waiters)
	if w.fields == nil {
		w.fields = map[string]string{}
	}
	deadline := l.clock()/1000 + max(1, min(number(lease), maxLease))
	w.fields[o] = strconv.FormatInt(deadline, 10) + ":" + ttl + ":" + channel
	end := l.in(2 * maxLease)
	q.expires, w.expires = end, end
	l.keys[l.queue], l.keys[l.waiters] = q, w
	return s, rank
}

// handOn returns 0, 1 and to whom and its token, or -1.
func (l line) handOn(self string) (r int, h string, c int64) {
	if l.exists(l.lock) || l.turns != "" && l.exists(l.turns) {
		return 0, "", 0
	}
	for range maxSkipped {
		order := l.order()
		if len(order) == 0 {
			return 0, "", 0
		}
		h = order[0]
		w, _ := l.get(l.waiters)
		waiter := w.fields[h]
		l.drop(h)
		p := strings.SplitN(waiter, ":", 3)
		if len(p) < 3 {
			continue
		}
		ttl, channel := number(p[1]), p[2]
		if ahead := number(p[0]) - l.clock()/1000; ahead < 0 || ahead > maxLease {
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
		c = l.mint()
		l.keys[l.lock] = entry{value: h, expires: l.in(ttl)}
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

func (n *Node) enqueue(l line, gone string, args []string) drivers.Reply {
	p := strings.SplitN(args[1], ":", 4)
	o, ttl, lease, ticket, channel := args[0], p[0], p[1], p[2], p[3]
	cur, held := l.get(l.lock)
	if held && cur.value == o {
		l.drop(o)
		return []drivers.Reply{int64(1), l.tokenOfHolder(), l.pttl(l.lock)}
	}
	if l.exists(gone) {
		return []drivers.Reply{int64(-1)}
	}
	left := l.pttl(l.lock)
	switch {
	case left == -1:
		l.drop(o)
		return []drivers.Reply{int64(-2)}
	case held && lease == "0":
		return []drivers.Reply{int64(0), left, int64(-1), wake(0, left), int64(0)}
	case !held && !l.exists(l.queue):
		c := l.mint()
		l.keys[l.lock] = entry{value: o, expires: l.after(ttl)}
		return c
	}
	s, rank := l.join(o, lease, ttl, channel, ticket)
	r, h, c := l.handOn(o)
	if h == o {
		return c
	}
	left = l.pttl(l.lock)
	if lease == "0" {
		l.drop(o)
		return []drivers.Reply{int64(0), left, int64(-1), wake(r, left), int64(0)}
	}
	if !held || rank < 0 {
		rank = int64(slices.Index(l.order(), o))
	}
	return []drivers.Reply{int64(0), left, rank, wake(r, left), s}
}

func (n *Node) claim(l line, packed string) drivers.Reply {
	ttl, o, _ := strings.Cut(packed, ":")
	cur, held := l.get(l.lock)
	if !held || cur.value != o {
		return []drivers.Reply{int64(0)}
	}
	left := l.pttl(l.lock)
	if left < number(ttl) {
		l.keys[l.lock] = entry{value: cur.value, expires: l.after(ttl)}
		left = number(ttl)
	}
	return []drivers.Reply{int64(1), l.tokenOfHolder(), left}
}

func (n *Node) handover(l line, gone string, args []string) drivers.Reply {
	p := strings.Split(args[1], ":")
	waiting := l.exists(l.queue) || l.exists(l.waiters)
	if waiting && (p[2] == "0" || p[0] != "0") {
		l.drop(args[0])
	}
	r := n.undo(l.lock, gone, l.fence, args[0], p[0], p[1], p[2])
	if waiting {
		r += l.again()
	}
	return r
}

// again hands the lock on and returns the additional values for the reply of a release.
func (l line) again() int64 {
	if r, _, _ := l.handOn(""); r == -1 {
		return 8
	}
	return 0
}

// holder returns the waiter whose turn it is, and its channel.
func (l line) holder() (w, channel string) {
	e, _ := l.get(l.turns)
	w, channel, _ = strings.Cut(e.value, " ")
	return w, channel
}

func (n *Node) turn(l line, args []string) drivers.Reply {
	p := strings.SplitN(args[1], ":", 3)
	w, lease, ticket, channel := args[0], p[0], p[1], p[2]
	left := l.pttl(l.lock)
	if holder, _ := l.holder(); holder == w {
		l.keys[l.turns] = entry{value: w + " " + channel, expires: l.in(claimWindow)}
		return []drivers.Reply{int64(1), left}
	}
	s, _ := l.join(w, lease, "0", channel, ticket)
	r, h, _ := l.handOn(w)
	if h == w {
		return []drivers.Reply{int64(1), left}
	}
	busy := left
	if left < 0 {
		busy = l.pttl(l.turns)
	}
	return []drivers.Reply{int64(0), left, int64(slices.Index(l.order(), w)), wake(r, busy), s}
}

func (n *Node) turnRelease(l line, gone string, args []string) drivers.Reply {
	p := strings.Split(args[0], ":")
	o, tomb, rest, token, w, leaves := p[0], p[1], p[2], p[3], p[4], len(p) == 6
	r := n.undo(l.lock, gone, l.fence, o, tomb, rest, token)
	if !l.exists(l.turns) && !l.exists(l.queue) {
		return r
	}
	holder, channel := l.holder()
	if w != "" {
		l.drop(w)
		if holder == w {
			delete(l.keys, l.turns)
			holder = ""
		}
	}
	if holder != "" && (!leaves || r%2 == 1) && !l.exists(l.lock) {
		if channel == "" || l.publish(channel, holder) > 0 {
			return r + 16
		}
		delete(l.keys, l.turns)
	}
	switch given, _, _ := l.handOn(""); given {
	case 1:
		return r + 16
	case -1:
		return r + 8
	}
	return r
}
