package simnode

import "github.com/golocker/locker/drivers"

func (n *Node) verify(l line, args []string) drivers.Reply {
	cur, held := l.get(l.lock)
	c, k := mine(cur.value, args[0])
	owner, _, _ := split(args[0])
	switch {
	case c > number(args[1]):
		return int64(3)
	case c > 0:
		return int64(1)
	case k > 0:
		return 32 * k
	case held && cur.value != "hold:"+owner:
		return int64(4)
	}
	return int64(0)
}
