package simnode

import (
	"slices"
	"strings"

	"github.com/golocker/locker/drivers"
)

// batch is a call of many.lua: acquisitions, then releases, in columns.
type batch struct {
	quantum                                         int64
	guard                                           guard
	locks, waits, fences, ttls, texts, free, values []string
}

// joined reports whether a call is one of many.lua. Its first argument is the number of acquisitions. The other scripts
// whose first argument may have digits only are those for turns, which have other numbers of keys and arguments.
func joined(k, args []string) (b batch, ok bool) {
	if len(args) < 2 || !digits(args[0]) {
		return batch{}, false
	}
	a := int(number(args[0]))
	var g guard
	if i, j := 3*a, 2+2*a; len(k) > i && len(args) > j && digits(args[j]) { // no value of a lock has digits only
		g = guard{k[i], args[j]}
		k, args = slices.Delete(slices.Clone(k), i, i+1), slices.Delete(slices.Clone(args), j, j+1)
	}
	r := len(k) - 3*a
	if r < 0 || len(args) != 2+2*a+r {
		return batch{}, false
	}
	locks, words := k[:3*a], args[2:]
	return batch{
		number(args[1]), g, locks[:a], locks[a : 2*a], locks[2*a:], words[:a], words[a : 2*a], k[3*a:], words[2*a:],
	}, true
}

// many executes what is the usual case. To all other commands it answers 0.
func (n *Node) many(b batch) drivers.Reply {
	var replies []drivers.Reply
	drawn := make([]int64, len(b.locks))
	for i, lock := range b.locks { // the counters come first
		l := line{Node: n, lock: lock, waiters: b.waits[i], fence: b.fences[i], guard: b.guard}
		if l.resting() == nil && !l.exists(l.lock) && !l.exists(l.waiters) {
			drawn[i] = l.mint(b.quantum, 0)
		}
	}
	for i, lock := range b.locks {
		l := line{Node: n, lock: lock, waiters: b.waits[i], fence: b.fences[i]}
		args := []string{b.texts[i], b.ttls[i]}
		replies = append(replies, n.observed("acquire", l, args, func(l line, args []string) drivers.Reply {
			if drawn[i] == 0 || l.exists(l.lock) { // the same lock may be there twice
				return int64(0)
			}
			l.keys[l.lock] = entry{value: counterText(drawn[i]) + args[0], expires: n.after(args[1])}
			return drawn[i]
		}))
	}
	for i, lock := range b.free {
		counter, text, _ := strings.Cut(b.values[i], "|")
		args := []string{"|" + text, counter}
		replies = append(replies, n.observed("release", line{Node: n, lock: lock}, args, n.releaseUnmarked))
	}
	if len(replies) == 1 {
		return replies[0]
	}
	return replies
}

func (n *Node) releaseUnmarked(l line, args []string) drivers.Reply {
	cur, _ := l.get(l.lock)
	counter, same := strings.CutSuffix(cur.value, args[0])
	if !same || len(counter) != counterDigits || counter > args[1] {
		return int64(0)
	}
	delete(l.keys, l.lock)
	return int64(1)
}
