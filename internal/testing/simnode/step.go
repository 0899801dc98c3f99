package simnode

import (
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
)

// Step is the execution of one script, with what it did to the lock that it is about.
type Step struct {
	Script        string
	Lock          string // the lock's key on the node
	Owner         string // who called
	Before, After State
}

// State is that of one lock.
type State struct {
	Owner   string    // "": free
	Expires time.Time // by the node's clock
	Fence   int64     // the counter
}

// fences is where each script has the counter among its keys. The script about turns does not have it.
var fences = map[[2]int]int{{3, 4}: 1, {2, 2}: 1, {2, 3}: 1, {3, 2}: 2, {5, 2}: 1, {2, 1}: 1, {4, 2}: 1, {6, 1}: 2}

func (n *Node) observed(k, args []string) drivers.Reply {
	fence := k[fences[[2]int{len(k), len(args)}]]
	if len(k) == 5 && strings.Count(args[1], ":") == 2 { // handover
		fence = k[2]
	}
	owner, rest, _ := strings.Cut(args[0], ":") // of turnrelease it is one word with the rest
	if len(k) == 2 && len(args) == 1 {          // claim
		owner = rest
	}
	before := n.state(k[0], fence)
	script, reply := n.script(k, args)
	n.Observe(Step{Script: script, Lock: k[0], Owner: owner, Before: before, After: n.state(k[0], fence)})
	return reply
}

func (n *Node) state(lock, fence string) State {
	e, _ := n.get(lock)
	return State{e.value, e.expires, n.counter(fence)}
}
