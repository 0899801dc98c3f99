//go:build unix

package supervise

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/internal/core/label"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/semaphore"
)

// elector runs the command in each of its terms.
type elector struct {
	opts   *Options
	cancel context.CancelFunc // ends the election

	mu     sync.Mutex
	now    *holder   // of the term; nil while nobody or somebody else leads
	ended  os.Signal // the signal that ends this program; nil if there was none
	result error     // what this program ends with
	outage time.Time // when a campaign was last reported that failed because of the store
}

// Elect campaigns until a signal arrives, and runs the command while it leads. open opens the store, whose Locker the
// caller closes.
func Elect(ctx context.Context, o *Options, open func() (locker.Locker, error)) error {
	l, signals, err := prepare(open)
	if err != nil {
		return err
	}
	defer signal.Stop(signals)
	e := &elector{opts: o}
	ctx, e.cancel = context.WithCancel(ctx)
	forwarded := make(chan struct{})
	go func() {
		defer close(forwarded)
		e.forward(ctx, signals)
	}()
	c := election.Config{OnElected: e.lead, OnError: e.wrong, Options: []locker.Option{locker.TTL(o.Validity)}}
	if _, several := l.(*semaphore.Semaphore); !several { // of several leaders, none can be observed as the one
		c.OnNewLeader = func(l election.Leader) {
			o.Note("%s leads %q, in term %d", label.Show(l.Identity), o.Key, l.Term)
		}
	}
	err = election.Run(e.trace(ctx), l, o.Key, c)
	e.cancel()
	<-forwarded
	if err != nil {
		return err
	}
	return e.result
}

// forward gives signals to the command, or ends the election if no command runs.
func (e *elector) forward(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-signals:
			if e.takes(sig) && sig == unix.SIGTSTP {
				stop()
			}
		}
	}
}

// takes gives a signal to the command. It reports whether no command runs.
func (e *elector) takes(sig os.Signal) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Contains(ending, sig) && e.ended == nil {
		e.ended = sig
		if e.now == nil {
			e.result = endedBy(sig)
			e.cancel()
		}
	}
	if e.now == nil {
		return true
	}
	select {
	case e.now.signals <- sig:
	default: // like signal.Notify
	}
	return false
}

// lead runs the command for one term. The guard stops it before the lease ends. The command does not get the terminal:
// Ctrl-C would end only the command, which would then be started anew.
func (e *elector) lead(_ context.Context, term election.Term) error {
	h := &holder{
		opts: e.opts, lease: term.Lease, signals: make(chan os.Signal, 16), renewed: make(chan struct{}, 1),
		terminal: new(terminal),
	}
	e.mu.Lock()
	if e.ended != nil { // the election is ending
		e.mu.Unlock()
		return nil
	}
	e.now = h
	e.mu.Unlock()
	if p, ok := locker.LeaseAs[*semaphore.Permit](term.Lease); ok {
		e.opts.Note("this machine leads %q, in term %d, with permit %d", e.opts.Key, term.Number, p.Slot())
	}
	err := h.hold()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now = nil
	if e.ended != nil {
		e.result = err
		e.cancel()
		return nil
	}
	return err
}

// outageInterval is how often an outage of the store is reported. Campaigns are repeated about once per second.
const outageInterval = time.Minute

// wrong says what went wrong, if the election goes on. The holder says itself that the command is being stopped.
func (e *elector) wrong(err error) {
	if e.ends() || errors.Is(err, election.ErrOverrun) {
		return
	}
	text, then := exit.Text(err), "waiting to lead again"
	var failed *locker.Error
	switch ok := errors.As(err, &failed); {
	case ok && failed.Op == "inspect": // that of an observer: it is reported once, and ends no term
		then = "it is not known who leads"
	case ok && failed.Op == "lock" && errors.Is(err, locker.ErrUnavailable):
		if !e.outageIsNew() {
			return
		}
		text = e.opts.Explain(err)
	}
	e.opts.Note("%s: %s", strings.ReplaceAll(text, "\n", "; "), then)
}

// ends reports whether a signal has ended the election.
func (e *elector) ends() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended != nil
}

// outageIsNew reports whether no outage was reported for an outageInterval, and notes that this one is.
func (e *elector) outageIsNew() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.outage) < outageInterval {
		return false
	}
	e.outage = time.Now()
	return true
}

// trace informs the holder of the term of renewals.
func (e *elector) trace(ctx context.Context) context.Context {
	return lockertrace.With(ctx, &lockertrace.Trace{
		Renewed: func(r lockertrace.Renewal) {
			e.mu.Lock()
			h := e.now
			e.mu.Unlock()
			if h != nil {
				h.renewal(r)
			}
		},
		InDoubt: func(err error) { e.opts.Note("%q could not be renewed, trying again: %s", e.opts.Key, exit.Text(err)) },
	})
}
