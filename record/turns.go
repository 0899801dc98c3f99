package record

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"
)

// turns is what this process remembers of locks that it takes again and again. The zero value is ready for use.
//
// A process that releases a lock and takes it again at once would leave nothing to others, who look at intervals: they
// find it free only by chance. So one that has waited for some pauses, and sees another owner each time, writes a sign,
// a record of its own. A process that takes the lock again at once looks for a new sign, once in a pause of waiters. If
// there is one, it leaves the lock to others for longer than such a pause.
//
// A sign is a hint. Nobody reads a lock from it: one that is lost, old or false costs a pause. A process that waits for
// a holder which keeps the lock writes none, and one that takes a lock which nobody wants reads one in a pause.
type turns struct {
	mu     sync.Mutex
	byName recent[turn]
}

// turn is the time in which a process has a lock again and again.
type turn struct {
	since  time.Time // when it began, or when a sign was looked for last
	freed  time.Time // when the lock was released last
	looked bool      // sign is known
	sign   string    // the version of the sign that was seen or written last; empty if there was none
}

// maxTurns bounds how many locks are remembered.
const maxTurns = 10_000

// of calls change with the turn of a lock, which may be a new one.
func (ts *turns) of(name string, change func(t *turn)) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.byName.use(name)
	if t == nil {
		if len(ts.byName.byName) >= maxTurns {
			oldest, _ := ts.byName.oldest()
			ts.byName.drop(oldest)
		}
		t = ts.byName.add(name)
	}
	change(t)
}

// signOf returns the name of the record for signs about a lock, which is that of no lock.
func signOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "=w" + hex.EncodeToString(sum[:16])
}

// yields reports whether this process has to leave a lock to others, which has had it for a while.
func (w *waiter) yields(ctx context.Context) (yields bool) {
	now := time.Now()
	w.turns.of(w.name, func(t *turn) {
		switch {
		case now.Sub(t.freed) >= w.poll: // those who look could have had it
			t.since = now
		case now.Sub(t.since) >= w.poll:
			t.since, yields = now, true
		}
	})
	if !yields {
		return false
	}
	version, err := w.signed(ctx)
	if err != nil {
		return false
	}
	w.turns.of(w.name, func(t *turn) {
		yields = t.looked && version != t.sign
		t.looked, t.sign = true, version
	})
	return yields
}

// signed returns the version of the sign about a lock, or nothing if there is none.
func (w *waiter) signed(ctx context.Context) (version string, err error) {
	ctx, cancel := w.bounded(ctx, w.poll)
	defer cancel()
	_, version, err = w.store.Get(ctx, signOf(w.name))
	return version, err
}

// sign writes a sign that this process waits for a lock which others take again and again. It has the text of a lock
// that is free.
func (w *waiter) sign(ctx context.Context) {
	version, err := w.signed(ctx)
	if err != nil {
		return
	}
	ctx, cancel := w.bounded(ctx, w.poll)
	defer cancel()
	c := content{State: free, Last: 1}
	c.renew(rand.Text())
	if text := c.text(); version == "" {
		version, err = w.store.Create(ctx, signOf(w.name), text)
	} else {
		version, err = w.store.Replace(ctx, signOf(w.name), version, text)
	}
	if err == nil {
		w.turns.of(w.name, func(t *turn) { t.looked, t.sign = true, version })
	}
}
