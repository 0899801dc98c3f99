package script

import (
	"strconv"
	"time"

	"github.com/golocker/locker/drivers"
)

// Wait returns the command that waits until replicas have what was written on the same connection, for at most timeout.
// The reply is how many have it, possibly more or less than were asked for.
func Wait(replicas int, timeout time.Duration) drivers.Command {
	// The server would wait for ever with a timeout of 0.
	return drivers.Command{"WAIT", strconv.Itoa(replicas), milliseconds(max(timeout, time.Millisecond))}
}

// granting returns c with grants as its Grants.
func (c Command) granting(grants func(drivers.Reply) bool) Command {
	c.Grants = grants
	return c
}

// acquires is the Grants of Acquire.
func acquires(reply drivers.Reply) bool {
	a, _ := ReadAcquired(reply)
	return a.Status == Granted
}

// handsOver is the Grants of Enqueue and Claim.
func handsOver(reply drivers.Reply) bool {
	p, _ := ReadPosition(reply)
	return p.Status == Granted
}

// extends is the Grants of Extend.
func extends(reply drivers.Reply) bool {
	o, _ := ReadOwned(reply)
	return o.Status == Done
}
