package pipeline

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/golocker/locker/drivers"
)

// exchange sends a batch within limit and resolves its calls. A call may take several exchanges with the driver: its
// usual case, joined with those of others, its own words if the case is not the usual one, and each of these once more
// with the text of a script that the server does not know. Each begins only when it is known that the server has not
// executed the one before. So the outcome of the last one is that of the call, also if it is not sent any more.
func (p *Pipeline) exchange(batch []*Call, limit time.Duration) {
	ctx, cancel := p.bounded(limit)
	defer cancel()
	patience := p.patience(limit)
	for requests := p.requests(batch); len(requests) > 0; {
		words := make([]drivers.Command, len(requests), len(requests)+1)
		for i := range requests {
			words[i] = requests[i].Words
		}
		words = p.confirming(words, patience)
		var replies []drivers.Reply
		err := errClosedUnsent
		if p.ctx.Err() == nil { // otherwise Close has begun before this goroutine came to run
			replies, err = p.driver.Do(ctx, words...)
			p.noteDial(ctx, err)
		}
		if err == nil && len(replies) != len(words) {
			err = fmt.Errorf("the driver returned %d replies to %d commands", len(replies), len(words))
		}
		if err != nil {
			replies = make([]drivers.Reply, len(words))
		}
		p.confirmed(requests, replies)
		var again []request
		for i := range requests {
			again = p.answered(&requests[i], replies[i], err, again)
		}
		requests = again
	}
	if len(batch) > 1 {
		// The goroutines that have waited for the batch run before the next one is taken, so that their next commands
		// are in it. Otherwise each of them would find a sender free, and send a batch of one.
		runtime.Gosched()
	}
}

// noteDial begins or ends a backoff after an exchange in ctx that returned err.
func (p *Pipeline) noteDial(ctx context.Context, err error) {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return // a dial that was interrupted says nothing about the node
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialBackoff.after(err)
}

// punctual reports whether the driver keeps to deadlines without a Done channel at the moment.
func (p *Pipeline) punctual() bool { return p.direct != nil && p.direct.Direct() }

// bounded returns the context of an exchange that may take at most limit.
func (p *Pipeline) bounded(limit time.Duration) (context.Context, context.CancelFunc) {
	end := time.Now().Add(limit)
	if p.punctual() && !p.abandoned.Load() {
		return &deadline{p.ctx, end}, func() {}
	}
	return context.WithDeadline(p.ctx, end)
}

// deadline is the context of an exchange with a driver that keeps to deadlines without a Done channel. Only time ends
// it. Close does not end it, but Drain, which is called before Close, waits for as long as the exchange may take. An
// exchange that begins after Abandon gets a context that Close ends. See drivers.Direct.
type deadline struct {
	context.Context // for Value: the pipeline's context
	end             time.Time
}

func (d *deadline) Deadline() (time.Time, bool) { return d.end, true }
func (d *deadline) Done() <-chan struct{}       { return nil }

func (d *deadline) Err() error {
	if time.Now().Before(d.end) {
		return nil
	}
	return context.DeadlineExceeded
}
