package simnode

import (
	"slices"
	"strings"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// holder returns the waiter whose turn it is, and its channel.
func (l line) holder() (w, channel string) {
	e, _ := l.get(l.turns)
	w, channel, _ = strings.Cut(e.value, " ")
	return w, channel
}

func (n *Node) turn(l line, args []string) drivers.Reply {
	p := strings.SplitN(args[1], ":", 3)
	w, posttl, ticket, channel := args[0], p[0], p[1], p[2]
	left := l.pttl(l.lock)
	cur, _ := l.get(l.lock)
	held, _ := wire.ParseValue(cur.value)
	if holder, _ := l.holder(); holder == w {
		l.keys[l.turns] = entry{value: w + " " + channel, expires: l.in(claimWindow)}
		l.mark()
		return []drivers.Reply{int64(1), left, held.Label}
	}
	s, _ := l.join(w, "", posttl, "0", channel, ticket)
	l.mark()
	r, h, _ := l.handOn(w)
	if h == w {
		return []drivers.Reply{int64(1), left, held.Label}
	}
	busy := left
	if left < 0 {
		busy = l.pttl(l.turns)
	}
	return []drivers.Reply{int64(0), left, int64(slices.Index(l.order(), w)), wake(r, busy), s, held.Label}
}

func (n *Node) turnRelease(l line, args []string) drivers.Reply {
	p := strings.Split(args[1], ":")
	w, leaves := p[3], len(p) == 5
	r := l.undo(args[0], p[0], p[1], p[2])
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
	return r + l.again()
}
