package simnode

import (
	"regexp"
	"strings"

	"github.com/golocker/locker/drivers"
)

var turnKey = regexp.MustCompile(`:lockturn(:[ts])?$`)

// script executes the script that has this shape of call.
func (n *Node) script(k, args []string) drivers.Reply {
	if m, ok := joined(k, args); ok {
		return n.many(m)
	}
	forTurn := len(k) >= 4 && turnKey.MatchString(k[len(k)-1])
	switch [2]int{len(k), len(args)} {
	case [2]int{1, 2}:
		return n.observed("claim", line{Node: n, lock: k[0]}, args, n.claim)
	case [2]int{2, 2}:
		if strings.Contains(args[1], ":") {
			return n.observed("release", line{Node: n, lock: k[0], waiters: k[1]}, args, n.release)
		}
		return n.observed("raise", line{Node: n, lock: k[0], fence: k[1]}, args, n.raise)
	case [2]int{2, 3}:
		return n.observed("extend", line{Node: n, lock: k[0], fence: k[1]}, args, n.extend)
	case [2]int{3, 4}:
		return n.observed("acquire", line{Node: n, lock: k[0], waiters: k[1], fence: k[2]}, args, n.acquire)
	case [2]int{4, 2}:
		if forTurn {
			l := line{Node: n, lock: k[0], waiters: k[1], queue: k[2], turns: k[3]}
			if strings.HasPrefix(args[0], "|") {
				return n.observed("turnrelease", l, args, n.turnRelease)
			}
			return n.observed("turn", l, args, n.turn)
		}
		l := line{Node: n, lock: k[0], waiters: k[1], fence: k[2], queue: k[3]}
		if strings.Count(args[1], ":") == 2 {
			return n.observed("handover", l, args, n.handover)
		}
		return n.observed("enqueue", l, args, n.enqueue)
	case [2]int{4, 0}:
		return n.inspect(line{n, k[0], k[1], k[2], k[3], ""})
	case [2]int{4, 1}:
		return n.force(line{n, k[0], k[1], k[2], k[3], ""}, args[0])
	case [2]int{5, 1}:
		return n.force(line{n, k[0], k[1], k[2], k[3], k[4]}, args[0])
	}
	return drivers.ServerError("ERR unknown script")
}
