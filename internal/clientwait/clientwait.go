// Package clientwait has the Wait of a call of Queue, for those who call Queue themselves: the suites of package
// conformance, and the tests of backends. It is that of a Client.
package clientwait

import (
	"context"
	"errors"
	"fmt"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/lockertrace"
)

// New returns the Wait of a call of Queue with the context ctx, whose hooks it calls, and with a patience. closes
// closes the Client.
func New(ctx context.Context, opts ...locker.Option) (wait backend.Wait, closes func()) {
	trace := lockertrace.Trace{}
	if t := lockertrace.From(ctx); t != nil {
		trace = *t
		trace.Attempted = nil // this attempt is none of the caller's
	}
	var q queue
	c := locker.NewClient(&q)
	_, err := c.Lock(lockertrace.With(context.Background(), &trace), "k", opts...)
	if !errors.Is(err, errTaken) {
		panic(err)
	}
	return q.wait, func() { _ = c.Close() }
}

// queue is a store that takes the Wait of the call of Queue, and ends the call.
type queue struct {
	backend.Backend
	wait backend.Wait
}

var errTaken = fmt.Errorf("%w: the wait is what was wanted", locker.ErrInvalid)

// Queue implements [backend.Queuer].
func (q *queue) Queue(_ context.Context, _ backend.Request, wait backend.Wait) (backend.Grant, error) {
	q.wait = wait
	return backend.Grant{}, errTaken
}
