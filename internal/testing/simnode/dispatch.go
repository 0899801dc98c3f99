package simnode

import (
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/wire"
)

// script executes the script that is called with keys k.
func (n *Node) script(cmd drivers.Command, k, args []string) drivers.Reply {
	if b, ok := joined(k, args); ok {
		return n.many(b)
	}
	if len(k) == 1 && len(args) > 0 && digits(args[0]) {
		return n.touch(k[0], args)
	}
	steps := wire.Steps(cmd)
	if len(steps) == 0 {
		return drivers.ServerError("ERR unknown script")
	}
	name := steps[0].Script
	if name == "all" {
		return n.all(k, args)
	}
	k, args, g := unguarded(name, k, args)
	switch name {
	case "claim":
		return n.observed(name, line{Node: n, lock: k[0], guard: g}, args, n.claim)
	case "release":
		return n.observed(name, line{Node: n, lock: k[0], waiters: k[1]}, args, n.release)
	case "raise":
		return n.observed(name, line{Node: n, lock: k[0], fence: k[1]}, args, n.raise)
	case "extend":
		return n.observed(name, line{Node: n, lock: k[0], fence: k[1]}, args, n.extend)
	case "verify":
		token, text := args[0][:counterDigits], args[0][counterDigits:]
		return n.observed(name, line{Node: n, lock: k[0], waiters: k[1]}, []string{text, token}, n.verify)
	case "acquire":
		return n.observed(name, line{Node: n, lock: k[0], waiters: k[1], fence: k[2], guard: g}, args, n.acquire)
	case "enqueue":
		return n.observed(name, line{n, k[0], k[1], k[2], k[3], "", g}, args, n.enqueue)
	case "handover":
		return n.observed(name, line{n, k[0], k[1], k[2], k[3], "", g}, args, n.handover)
	case "turn":
		return n.observed(name, line{n, k[0], k[1], "", k[2], k[3], g}, args, n.turn)
	case "turnrelease":
		return n.observed(name, line{n, k[0], k[1], "", k[2], k[3], g}, args, n.turnRelease)
	case "inspect":
		return n.inspect(line{n, k[0], k[1], k[2], k[3], "", g})
	default:
		l := line{n, k[0], k[1], k[2], k[3], "", g}
		if len(k) > 4 {
			l.turns = k[4]
		}
		return n.force(l, args[0])
	}
}
