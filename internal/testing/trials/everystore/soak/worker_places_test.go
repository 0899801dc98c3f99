package soak

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// semaphores is the keys of permits. Programs that use one of them have one of its limits.
var semaphores = []struct {
	key    string
	limits []int
}{{"one", []int{1}}, {"three", []int{3}}, {"mixed", []int{2, 5}}, {"many", []int{70}}}

// changing is the key of permits whose limit changes.
const changing = "changing"

// shelves is the keys of readers and writers.
var shelves = []string{"x", "y", "z"}

// oneOf returns which of n keys to use. A caller stays with a key for a while. If each call were for another key, all
// callers would soon wait for the holder that was killed or stopped last.
func (w *worker) oneOf(n int) int {
	if w.left == 0 {
		w.home, w.left = rand.IntN(n), 1+rand.IntN(200)
	}
	w.left--
	return w.home
}

// permits acquires permits of a key. Those of the key that has many cost as many requests, so it comes seldom.
func (w *worker) permits(ctx context.Context) {
	of := semaphores[w.oneOf(len(semaphores)-1)]
	if rand.IntN(20) == 0 {
		of = semaphores[len(semaphores)-1]
	}
	w.permit(ctx, of.key, of.limits[w.Who%len(of.limits)])
}

// limited acquires permits of the key whose limit changes.
func (w *worker) limited(ctx context.Context) { w.permit(ctx, changing, w.Limit) }

// permit acquires one of n permits, or several.
func (w *worker) permit(ctx context.Context, key string, n int) {
	of := word{Kind: permit, Key: key, Limit: n, Weight: 1}
	if rand.IntN(3) == 0 {
		of.Weight += rand.IntN(n)
	}
	lease := w.acquire(ctx, semaphore.New(w.Locker, n).Weight(of.Weight), &of)
	if lease == nil {
		return
	}
	if p, ok := locker.LeaseAs[*semaphore.Permit](lease); ok {
		of.Slots = p.Slots()
	}
	w.use(ctx, lease, w.tell(lease, &of))
	w.during("Unlock", func() { _ = lease.Unlock(ctx) })
}

// readersAndWriters acquires a lease of a reader or of a writer, and changes it while it can.
func (w *worker) readersAndWriters(ctx context.Context) {
	of, l := word{Kind: shared, Key: shelves[w.oneOf(len(shelves))]}, w.rw.Shared()
	switch n := rand.IntN(w.Mixed); {
	case n < 4:
		of.Kind, l = upgradeable, w.rw.Upgradeable()
	case n < 6:
		of.Kind, l = exclusive, w.rw.Exclusive()
	}
	lease := w.acquire(ctx, l, &of)
	if lease == nil {
		return
	}
	for {
		tell := w.tell(lease, &of)
		w.use(ctx, lease, tell)
		next, err := w.change(ctx, lease, &of)
		if err != nil { // after Upgrade, the lease is as before
			w.use(ctx, lease, tell)
		}
		if next == nil {
			break
		}
		lease = next
	}
	w.during("Unlock", func() { _ = lease.Unlock(ctx) })
}

// change upgrades or downgrades a lease, and then of is about the one that it returns. Sometimes it does nothing.
func (w *worker) change(ctx context.Context, lease locker.Lease, of *word) (next locker.Lease, err error) {
	call, cancel := context.WithTimeout(ctx, rand.N(limit))
	defer cancel()
	to, began := shared, now()
	switch n := rand.IntN(8); {
	case of.Kind == shared, n == 0:
		return nil, nil
	case of.Kind == upgradeable && n > 1:
		to = exclusive
		w.during("Upgrade", func() { next, err = rwlock.Upgrade(call, lease) })
	default:
		w.during("Downgrade", func() { next, err = rwlock.Downgrade(call, lease) })
	}
	if err != nil {
		return nil, err
	}
	*of = word{Kind: to, Key: of.Key, From: of.Lease, Began: began}
	return next, nil
}

// acquire calls Lock, or sometimes TryLock, or as if it had options: readers then have slots of their own. It returns
// nil if it has failed.
func (w *worker) acquire(ctx context.Context, l locker.Locker, of *word) (lease locker.Lease) {
	call, cancel := context.WithTimeout(ctx, rand.N(limit))
	defer cancel()
	var err error
	var opts []locker.Option
	if rand.IntN(4) == 0 {
		opts = append(opts, locker.TTL(ttl))
	}
	of.Began = now()
	if rand.IntN(4) == 0 || w.Once {
		w.during("TryLock", func() { lease, err = l.TryLock(call, of.Key, opts...) })
	} else {
		w.during("Lock", func() { lease, err = l.Lock(call, of.Key, opts...) })
	}
	if err != nil {
		pause()
		return nil
	}
	return lease
}

// tell says that the worker has a lease, and returns a function that says what it does with it.
func (w *worker) tell(lease locker.Lease, of *word) func(what string, at int64) {
	of.What, of.At, of.Lease, of.Fence, of.Owner = has, now(), w.name(), lease.Fence(), lease.Token()
	w.say(*of)
	key, name := of.Key, of.Lease
	return func(what string, at int64) { w.say(word{What: what, Key: key, Lease: name, At: at}) }
}

// use relies on a lease, mostly for a short time, and sometimes until it was renewed. Others wait meanwhile, so most of
// the trial is this time if it is longer.
func (w *worker) use(ctx context.Context, lease locker.Lease, tell func(what string, at int64)) {
	d := rand.N(4 * time.Millisecond)
	switch n := rand.IntN(2000); {
	case n == 0:
		d = rand.N(2 * ttl)
	case n < 60:
		d = rand.N(40 * time.Millisecond)
	}
	rely(lease, d, tell)
	switch rand.IntN(40) {
	case 0:
		w.verify(ctx, lease, tell)
	case 1:
		w.during("Extend", func() {
			call, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			_ = lease.Extend(call)
		})
		rely(lease, 0, tell)
	}
}
