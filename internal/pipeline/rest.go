package pipeline

import (
	"errors"
	"net"
	"time"

	"github.com/golocker/locker/drivers"
)

const (
	minRest = 10 * time.Millisecond
	maxRest = 100 * time.Millisecond
)

// rest is the time for which commands other than releases are refused, because the node could not be connected to. To
// dial a server that is down for every command costs more than to talk to one that is up, and a Redlock pays it for
// each node that is down. A rest doubles from minRest to maxRest, until something is sent again.
type rest struct {
	length time.Duration // of the last one; 0: the node could be connected to
	until  time.Time
	reason error
}

func (r *rest) refuses() bool { return r.length > 0 && time.Now().Before(r.until) }

// after begins or ends a rest after an exchange that came to err.
func (r *rest) after(err error) {
	if !isUnreachable(err) {
		*r = rest{}
		return
	}
	r.length = min(max(2*r.length, minRest), maxRest)
	r.until, r.reason = time.Now().Add(r.length), err
}

// isUnreachable reports whether err says that the node could not be connected to. [drivers.ErrNotSent] is not enough: a
// client whose pool is exhausted, or whose context had ended, has sent nothing either, and the node is in order.
func isUnreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" && errors.Is(err, drivers.ErrNotSent)
}
