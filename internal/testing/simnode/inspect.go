package simnode

import (
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
)

// operators are the scripts that operators use. It reports whether the call is of one of them.
func (n *Node) operators(k, args []string) (reply drivers.Reply, ok bool) {
	switch {
	case len(k) == 4 && len(args) == 0:
		return n.inspect(line{n, k[0], k[1], k[2], k[3], ""}), true
	case len(k) == 5 && len(args) == 1:
		return n.force(line{n, k[0], k[2], k[3], k[4], ""}, k[1], args[0]), true
	case len(k) == 6 && len(args) == 1 && strings.Contains(k[5], ":lockturn"):
		return n.force(line{n, k[0], k[2], k[3], k[4], k[5]}, k[1], args[0]), true
	}
	return nil, false
}

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

func (n *Node) force(l line, gone, arg string) drivers.Reply {
	p := strings.SplitN(arg, ":", 3)
	o, free := p[2][:number(p[1])], p[2][number(p[1]):]
	cur, held := l.get(l.lock)
	mark, _ := l.get(gone)
	var r int64
	switch {
	case held && (cur.value == o || l.turns != "" && alias(cur.value, o) > 0) && !cur.expires.IsZero():
		delete(l.keys, l.lock)
		l.keys[gone] = entry{value: "f", expires: time.Now().Add(time.Duration(number(p[0])) * time.Millisecond)}
		l.drop(o)
		r = 1
	case mark.value == "f":
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
	r += l.again()
	if free != "" && !l.exists(l.lock) {
		l.publish(free, "free")
	}
	return r
}
