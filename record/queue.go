package record

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// Queue implements [backend.Queuer]. There is no queue in the store: the call looks at intervals, see [Poll], and when
// the store tells of a change, see [Watcher]. A Client would look more often.
func (b *Backend) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	first := req.Token
	wait.EndWith(b.closing)
	w := waiter{
		Backend: b, name: nameOf(b.prefix + req.Key), record: b.placeOf(req.Key).name, began: time.Now(),
	}
	defer w.unwatch()
	if w.yields(ctx) {
		wait.Held(nil)
		if _, err := wait.Sleep(ctx, b.poll+b.poll/4, nil); err != nil {
			return backend.Grant{}, err
		}
		b.seen.hint(w.record)
		w.looks = lastPause // it comes after those who have waited meanwhile
	}
	for {
		sent := time.Now()
		req.Fences = wait.Fences()
		g, left, owner, err := b.acquire(ctx, req, wait.Limit(req.TTL), w.age)
		var held *locker.HeldError
		switch {
		case err == nil:
			g.Sent = sent
			if req.Token != first {
				g.Token = req.Token
			}
			return g, nil
		case b.usable() != nil:
			return backend.Grant{}, locker.ErrClosed
		case errors.As(err, &held):
			wait.Held(held)
			w.saw(ctx, owner)
			err = w.sleep(ctx, wait, left)
		case errors.Is(err, locker.ErrUnavailable):
			var pause time.Duration
			if pause, err = wait.Failed(ctx, sent, err); err == nil {
				req.Token = backend.NewToken() // the attempt may be undone later
				_, err = wait.Sleep(ctx, pause, nil)
			}
		}
		if err != nil {
			return backend.Grant{}, err
		}
	}
}

// waiter is a call that waits for a lock.
type waiter struct {
	*Backend
	name   string // stands for the lock
	record string // has it
	began  time.Time
	age    time.Duration // how old what others have read of a group may be

	looks int    // how many have found the lock held
	owner string // that the last one has shown

	signedAt time.Time // when it has signed last; see turns
	signs    int       // how many times

	live  func() bool // see Watcher; nil before the lock was seen held
	stop  func()
	news  chan bool // has a value if the record may have changed
	hasty bool      // it was told of that soon after the look before
}

// saw notes whose lock a look has shown. If it is another one each time, for longer than waiters need who come at
// different times, the waiter signs now and then. Sooner, those who use the lock for a moment now and then would leave
// it to each other all the time.
func (w *waiter) saw(ctx context.Context, owner string) {
	was := w.owner
	w.owner = owner
	w.looks++
	if was == "" || was == owner || time.Since(w.began) < overtaken*w.poll || time.Since(w.signedAt) < 2*w.poll {
		return
	}
	w.sign(ctx)
	w.signedAt = time.Now()
	w.signs++
}

// watch begins to watch the record, if the Store can.
func (w *waiter) watch() {
	w.live, w.stop = func() bool { return false }, func() {}
	if s, ok := w.store.(Watcher); ok {
		w.news = make(chan bool, 1)
		w.live, w.stop = s.Watch(w.record, func() {
			select {
			case w.news <- false:
			default: // it has not looked yet
			}
		})
	}
}

func (w *waiter) unwatch() {
	if w.stop != nil {
		w.stop()
	}
}

// sleep waits until the next look, after the lock was found held. If the record is watched, that is when it has
// changed, and seldom otherwise. But a lock that changes hands all the time is looked at no more often than one that is
// not watched.
func (w *waiter) sleep(ctx context.Context, wait backend.Wait, left time.Duration) error {
	if w.live == nil && w.owner != "" { // not a tick
		w.watch()
	}
	if w.live == nil || !w.live() {
		pause := w.pause(left)
		w.age = pause / 2
		_, err := wait.Sleep(ctx, pause, w.news)
		return err
	}
	w.age = 0
	start := time.Now()
	if !w.hasty {
		w.looks = 1
	} else {
		quiet := w.pause(left)
		if _, err := wait.Sleep(ctx, quiet, nil); err != nil {
			return err
		}
		left -= quiet
	}
	_, err := wait.Sleep(ctx, min(left, heartbeats*(w.poll/2+rand.N(w.poll/2+1))), w.news)
	w.hasty = time.Since(start) < w.poll
	return err
}

const (
	// heartbeats is how many times less often a waiter looks that is told of changes.
	heartbeats = 10

	// overtaken is for how many pauses of its own a waiter has waited when it signs for the first time.
	overtaken = 4

	// lastPause is how many pauses are longer than the one before.
	lastPause = 4

	// hurry is how many times the pauses of a waiter are halved that has to sign again.
	hurry = 2
)

// pause returns how long to wait after the lock was found held. It counts as free after left, if it is not renewed.
func (w *waiter) pause(left time.Duration) time.Duration {
	n := min(w.looks-1, lastPause) - min(max(0, w.signs-1), hurry)
	d := min(w.poll, max(time.Millisecond, w.poll/16)<<max(0, n))
	return min(d/2+rand.N(d/2+1), left)
}
