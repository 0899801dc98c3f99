package simnode

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/golocker/locker/drivers"
)

// guard is the restart guard of a command; see guard.lua. The zero value is no guard.
type guard struct{ marker, rest string }

// unguarded returns a command without its guard, and the guard.
func unguarded(script string, k, args []string) ([]string, []string, guard) {
	last := len(k) - 1
	switch {
	case script == "claim" && len(k) == 2:
		ttl, rest, _ := strings.Cut(args[1], ":")
		return k[:last], []string{args[0], ttl}, guard{k[last], rest}
	case script == "acquire" && len(k) == 4:
		p := strings.Split(args[2], ":")
		return k[:last], []string{args[0], args[1], p[0], p[1]}, guard{k[last], p[2]}
	case script == "enqueue" && len(k) == 5:
		p := strings.SplitN(args[1], ":", 5)
		return k[:last], []string{args[0], strings.Join([]string{p[0], p[1], p[2], p[4]}, ":")}, guard{k[last], p[3]}
	case script == "handover" && len(k) == 5:
		i := strings.LastIndex(args[1], ":")
		return k[:last], []string{args[0], args[1][:i]}, guard{k[last], args[1][i+1:]}
	case script == "force" && len(args) == 2:
		return k[:last], args[:1], guard{k[last], args[1]}
	}
	return k, args, guard{}
}

// resting returns nil if the node may grant locks, and otherwise the reply.
func (l line) resting() drivers.Reply {
	if l.guard.marker == "" {
		return nil
	}
	if l.NoInfo {
		return []drivers.Reply{int64(-5), int64(0)}
	}
	m, _ := l.get(l.guard.marker)
	p := strings.Split(m.value, ":")
	if len(p) == 3 && p[2] != l.guard.rest {
		return []drivers.Reply{int64(-4), number(p[2])}
	}
	now := l.clock()
	if len(p) != 3 || p[0] != l.incarnation() || number(p[1]) > now {
		l.keys[l.guard.marker] = entry{value: fmt.Sprintf("%s:%d:%s", l.incarnation(), now, l.guard.rest)}
		return []drivers.Reply{int64(-3), number(l.guard.rest)}
	}
	if left := number(l.guard.rest) - (now-number(p[1]))/1000; left > 0 {
		return []drivers.Reply{int64(-3), left}
	}
	return nil
}

// touch is touch.lua.
func (n *Node) touch(key string, args []string) drivers.Reply {
	l := line{Node: n, guard: guard{key, args[0]}}
	reply := l.resting()
	switch {
	case len(args) == 2 && !n.NoInfo:
		n.keys[key] = entry{value: l.incarnation() + ":0:" + args[0]}
	case reply != nil:
		return reply
	}
	return int64(0)
}

func (n *Node) incarnation() string { return strconv.Itoa(n.restarts) }

// Restart is a restart that keeps all data. With [Node.Flush], it is one that keeps nothing.
func (n *Node) Restart() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.restarts++
}
