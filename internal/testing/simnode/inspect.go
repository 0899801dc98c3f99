package simnode

import (
	"strings"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// The scripts for operators.

func (n *Node) inspect(l line) drivers.Reply {
	now := l.clock()
	waiting := int64(0)
	w, _ := l.get(l.waiters)
	for _, o := range l.order() {
		if deadline, _, ok := strings.Cut(w.fields[o], ":"); ok && number(deadline)*1000 >= now {
			waiting++
		}
	}
	state, owner := int64(0), ""
	if cur, ok := l.get(l.lock); ok {
		state, owner = 1, cur.value
		if cur.expires.IsZero() {
			state = 2
		}
	}
	return []drivers.Reply{state, l.pttl(l.lock), l.counter(l.fence), waiting, now, owner}
}

func (n *Node) force(l line, arg string) drivers.Reply {
	p := strings.SplitN(arg, ":", 3)
	value, free := p[2][:number(p[1])], p[2][number(p[1]):]
	o := value
	forced, ours := wire.ParseValue(value)
	if ours {
		o = forced.Owner
	}
	cur, held := l.get(l.lock)
	now, isLock := wire.ParseValue(cur.value)
	r := int64(0)
	switch {
	case held && (cur.value == value || ours && isLock && now.Owner == o) && !cur.expires.IsZero():
		delete(l.keys, l.lock)
		l.drop(o)
		l.bury(o, "f", number(p[0]))
		r = 1
	case l.buried(o) == "f":
		r = 2
	}
	if r == 0 || l.exists(l.lock) {
		return r
	}
	if holder, channel := l.holder(); holder != "" {
		if channel == "" || l.publish(channel, holder) > 0 {
			return r
		}
		delete(l.keys, l.turns)
	}
	r += l.again() & 8
	if free != "" && !l.exists(l.lock) {
		l.publish(free, "free")
	}
	return r
}
