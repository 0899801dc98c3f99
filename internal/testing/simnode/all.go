package simnode

import (
	"strings"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// all is all.lua: it acquires several locks, all or none.
func (n *Node) all(k, args []string) drivers.Reply {
	texts := args[1:]
	many := len(texts)
	ttl, rest, guarded := strings.Cut(args[0], ":")
	var g guard
	if guarded {
		g = guard{k[len(k)-1], rest}
	}
	lines := make([]line, many)
	free, other := true, -1
	var granted []drivers.Reply
	for i := range lines {
		lines[i] = line{Node: n, lock: k[i], waiters: k[many+i], fence: k[2*many+i], guard: g}
		cur, held := lines[i].get(k[i])
		if c, _ := mine(cur.value, texts[i]); c > 0 {
			granted = append(granted, c)
		} else if held && other < 0 {
			other = i
		}
		o, _, _ := split(texts[i])
		free = free && !held && lines[i].vacant(o)
	}
	switch {
	case len(granted) == many:
		return granted
	case len(granted) > 0:
		return int64(-1)
	case other >= 0:
		cur, _ := lines[other].get(k[other])
		if cur.expires.IsZero() {
			return int64(0)
		}
		p, _ := wire.ParseValue(cur.value)
		return []drivers.Reply{int64(0), int64(other + 1), n.left(cur), p.Label}
	case !free, lines[0].resting() != nil:
		return int64(0)
	}
	for i, l := range lines {
		granted = append(granted, n.observed("all", l, []string{texts[i]}, func(l line, args []string) drivers.Reply {
			c := l.mint(1, 0)
			l.keys[l.lock] = entry{value: counterText(c) + args[0], expires: n.after(ttl)}
			return c
		}))
	}
	return granted
}

// vacant reports whether nobody waits for the lock, and the attempt of o was not released before.
func (l line) vacant(o string) bool {
	w, ok := l.get(l.waiters)
	if !ok {
		return true
	}
	if w.fields == nil || len(w.fields) > 64 || l.buried(o) != "" {
		return false
	}
	for field := range w.fields {
		if !strings.HasPrefix(field, "!") {
			return false
		}
	}
	return true
}
