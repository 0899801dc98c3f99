package pipeline

import (
	"errors"
	"net"
	"time"

	"github.com/golocker/locker/drivers"
)

const (
	minDialBackoff = 10 * time.Millisecond
	maxDialBackoff = 100 * time.Millisecond
)

// dialBackoff is a time during which commands other than releases are refused, because the last dial has failed. To
// dial a server that is down for every command costs more than a command to a server that is up, and a Redlock would
// pay this for each node that is down. Each backoff is twice as long as the one before, from minDialBackoff to
// maxDialBackoff, until a command is sent again.
//
// A release is sent meanwhile, and so finds out whether the node is back. If it were refused, a clean-up would repeat
// it, up to a second later. Releases are few, because a node that is down grants nothing.
type dialBackoff struct {
	length time.Duration // of the last backoff; 0 if the last dial succeeded
	until  time.Time
	reason error
}

func (b *dialBackoff) refuses() bool { return b.length > 0 && time.Now().Before(b.until) }

// after begins or ends a backoff after an exchange that returned err.
func (b *dialBackoff) after(err error) {
	if !isUnreachable(err) {
		*b = dialBackoff{}
		return
	}
	b.length = min(max(2*b.length, minDialBackoff), maxDialBackoff)
	b.until, b.reason = time.Now().Add(b.length), err
}

// isUnreachable reports whether err says that a dial has failed. [drivers.ErrNotSent] alone does not: a client also
// sends nothing if its pool is exhausted or the context has ended, while the node is in order.
func isUnreachable(err error) bool {
	if err == nil {
		return false // as nearly always, and without the memory for op
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" && errors.Is(err, drivers.ErrNotSent)
}
