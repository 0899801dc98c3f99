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

// rest is a time during which commands other than releases are refused, because the last dial has failed. To dial a
// server that is down for every command costs more than a command to a server that is up, and a Redlock would pay this
// for each node that is down. Each rest is twice as long as the one before, from minRest to maxRest, until a command is
// sent again.
type rest struct {
	length time.Duration // of the last rest; 0 if the last dial succeeded
	until  time.Time
	reason error
}

func (r *rest) refuses() bool { return r.length > 0 && time.Now().Before(r.until) }

// after begins or ends a rest after an exchange that returned err.
func (r *rest) after(err error) {
	if !isUnreachable(err) {
		*r = rest{}
		return
	}
	r.length = min(max(2*r.length, minRest), maxRest)
	r.until, r.reason = time.Now().Add(r.length), err
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
