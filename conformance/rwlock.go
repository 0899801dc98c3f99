package conformance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/rwlock"
)

// rwLock is what one process uses to read and write, of package rwlock.
type rwLock struct {
	shared, exclusive, upgradeable locker.Locker
	upgrade, downgrade             func(ctx context.Context, lease locker.Lease) (locker.Lease, error)
}

// RunRWLock checks that package rwlock works over the store, with one subtest per property.
func RunRWLock(t *testing.T, h Harness) {
	if h.Store == nil {
		t.Fatal("conformance: Harness needs Store")
	}
	run(t, h, h.Bubble, rwlockProperties)
}

var rwlockProperties = []property[Harness]{
	{
		"ReadersAreTogether",
		"Readers of all clients hold a key at the same time, beside at most one upgradeable holder, whether the key was " +
			"free or they waited for a writer.",
		"Readers that exclude each other gain nothing over a lock; two upgradeable holders that become writers would wait " +
			"for each other.",
		readersAreTogether,
	},
	{
		"WriterIsAlone",
		"While a key has a writer, it has no reader, no upgradeable holder and no other writer, across all clients of the " +
			"store.",
		"A reader beside a writer reads what is half written.",
		writerIsAlone,
	},
	{
		"WriterWaitsForReaders",
		"A writer waits until all readers that came before it have left; those that come while it waits are refused or " +
			"wait behind it.",
		"Among many readers there is always one: a writer that later ones may overtake never comes.",
		writerWaitsForReaders,
	},
	{
		"ReaderPrecedesLaterWriters",
		"A reader that waits is served before a writer that has come after it and waits behind another writer.",
		"Among many writers a reader would never come.",
		readerPrecedesLaterWriters,
	},
	{
		"UpgradeLeavesNoGap",
		"Upgrade waits until all readers have left, makes the upgradeable holder a writer before all writers that wait, " +
			"and ends the lease that it was given.",
		"What the caller has read, and decides by, would be changed by another writer before it writes.",
		upgradeLeavesNoGap,
	},
	{
		"DowngradeLeavesNoGap",
		"Downgrade makes a writer a reader before all writers that wait, lets other readers in, and ends the lease that it " +
			"was given.",
		"What the caller has written, and goes on to read, would be changed by another writer.",
		downgradeLeavesNoGap,
	},
	{
		"LostPartIsTold",
		"If the store loses a lock that the lease of a reader or writer is made of, the lease ends with ErrLost within one " +
			"TTL, and Unlock reports ErrNotHeld.",
		"A writer that goes on without one of its locks has a reader beside it.",
		lostPartIsTold,
	},
	{
		"CrashedHolderExpires",
		"What a reader or a writer holds that has crashed is free when its own TTL is over, whatever TTL others have, and " +
			"not before its Until.",
		"A crash would keep all writers out for ever, or let them in while the reader still works.",
		crashedHolderExpires,
	},
	{
		"CancelledReadersAndWritersLeaveNothing",
		"Lock and TryLock leave nothing behind, neither what they have acquired nor what others wait for, at whatever " +
			"moment their context ends.",
		"A part of what a writer needs keeps all other writers out for a whole TTL.",
		cancelledReadersAndWritersLeaveNothing,
	},
	{
		"TokensOfReadersAndWriters",
		"The fencing token of a writer is greater than those of all readers and writers before it, and that of a reader is " +
			"greater than those of all writers before it, also after Upgrade and Downgrade.",
		"The protected resource refuses smaller tokens: it refuses the real writer, or accepts a stale one.",
		tokensOfReadersAndWriters,
	},
	{
		"HolderDoesNotWaitForItself",
		"Lock fails at once with ErrReentrant if its context carries a lease of the same key, whichever kinds they are; " +
			"other keys can be locked.",
		"A reader that asks again waits for the writer in between, which waits for the reader.",
		holderDoesNotWaitForItself,
	},
	{
		"ReadersAndWritersAreWanted",
		"The channel of locker.Wanted of a reader, a writer or an upgradeable holder, also after Upgrade and Downgrade, is " +
			"closed when another client waits that it keeps out, with the answer to an Extend at the latest, and stays open " +
			"while nobody waits.",
		"Holders that can stop early make room when it is closed: a writer would wait until the last reader has ended, or " +
			"holders would stop for nobody.",
		readersAndWritersAreWanted,
	},
}

// busy has a value for each property in progress that takes requests for many locks at once, in real time. With more of
// them than that, their calls are late because the store and the machine are busy, and not because of a fault.
var busy = make(chan struct{}, 2)

// rwlocks makes an rwLock for each of n clients of a fresh store.
func rwlocks(t testing.TB, h Harness, n int) ([]rwLock, Store) {
	t.Helper()
	if h.Bubble == nil {
		busy <- struct{}{}
		t.Cleanup(func() { <-busy })
	}
	ls, s := clients(t, h, n)
	rws := make([]rwLock, n)
	for i, l := range ls {
		if h.rwLock != nil {
			rws[i] = h.rwLock(l)
		} else {
			rws[i] = packageRWLock(l)
		}
	}
	return rws, s
}

func packageRWLock(l locker.Locker) rwLock {
	rw := rwlock.New(l)
	return rwLock{
		shared: rw.Shared(), exclusive: rw.Exclusive(), upgradeable: rw.Upgradeable(),
		upgrade: rwlock.Upgrade, downgrade: rwlock.Downgrade,
	}
}

// kinds returns the Lockers.
func (rw rwLock) kinds() []locker.Locker {
	return []locker.Locker{rw.shared, rw.exclusive, rw.upgradeable}
}

// rounds is how often something is done that takes a request for each of many locks. In real time some stores, and a
// machine on which much else runs, need seconds for a few hundred of them.
func (h Harness) rounds() int {
	if h.Bubble != nil {
		return 3
	}
	return 1
}

// read acquires key, which readers can hold now or soon. Unlike TryLock, the call waits for what others still clean up.
func (rw rwLock) read(t testing.TB, key string) locker.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
	defer cancel()
	start := time.Now()
	lease, err := rw.shared.Lock(ctx, key, locker.TTL(longTTL))
	prompt(t, start)
	if err != nil {
		t.Fatalf("Lock of a reader beside readers: expected a lease, seen %v", err)
	}
	return lease
}

// holder is a kind of holder, in the order of rwLock.kinds.
type holder int

const (
	reader holder = iota
	writer
	upgrader
)

// traffic counts the holders of a key, and judges them.
type traffic struct {
	mu            sync.Mutex
	in            [3]int // holders, by kind
	newest, wrote uint64 // the greatest token of all that have held it, and of writers
}

// enters counts a new holder, and checks it against the others.
func (j *traffic) enters(t testing.TB, h holder) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.in[h]++
	readers, writers, upgraders := j.in[reader], j.in[writer], j.in[upgrader]
	if writers+upgraders > 1 || writers == 1 && readers > 0 {
		t.Errorf("expected a writer by itself, or readers with one upgradeable holder, seen %d readers, %d writers and "+
			"%d upgradeable holders at once", readers, writers, upgraders)
	}
}

func (j *traffic) leaves(h holder) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.in[h]--
}

// tokened checks the token of somebody who holds the key.
func (j *traffic) tokened(t testing.TB, h holder, fence uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if h != writer {
		if fence <= j.wrote {
			t.Errorf("a reader: expected a token greater than %d, which a writer had before, seen %d", j.wrote, fence)
		}
		j.newest = max(j.newest, fence)
		return
	}
	if fence <= j.newest {
		t.Errorf("a writer: expected a token greater than %d, which somebody had before, seen %d", j.newest, fence)
	}
	j.newest, j.wrote = fence, fence
}

func readersAreTogether(t testing.TB, h Harness) {
	rws, _ := rwlocks(t, h, 3)
	var held []locker.Lease
	for _, opts := range [][]locker.Option{nil, {locker.TTL(longTTL)}} {
		for _, rw := range rws {
			held = append(held, lock(t, rw.shared, "k", opts...))
		}
	}
	held = append(held, rws[0].read(t, "k"))
	held = append(held, lock(t, rws[1].upgradeable, "k", locker.TTL(longTTL)))
	wantHeld(t, rws[2].upgradeable, "k")
	wantHeld(t, rws[2].exclusive, "k")
	for _, lease := range held {
		unlock(t, lease)
	}
	written, _ := acquireWhenFree(t, rws[0].exclusive, "k")
	ctx, cancel := context.WithTimeout(t.Context(), 2*hangLimit)
	defer cancel()
	var ws []*waiter
	for i, rw := range rws {
		l := rw.shared
		if i == 2 {
			l = rw.upgradeable
		}
		w := wait(ctx, l, "k")
		w.settle(unheard)
		ws = append(ws, w)
	}
	unlock(t, written)
	for _, w := range ws {
		await(t, "all readers that wait for a writer to be served", w.done, hangLimit)
	}
	for _, w := range ws {
		w.serve(t, "of a reader behind a writer")
	}
}

func writerIsAlone(t testing.TB, h Harness) {
	rws, _ := rwlocks(t, h, 3)
	written := lock(t, rws[0].exclusive, "k", locker.TTL(longTTL))
	for _, rw := range rws[:2] {
		for _, l := range rw.kinds() {
			wantHeld(t, l, "k")
		}
	}
	unlock(t, written)
	ctx, cancel := context.WithTimeout(t.Context(), 6*hangLimit)
	defer cancel()
	var j traffic
	var wg sync.WaitGroup
	contend := func(kind holder, l locker.Locker, opts ...locker.Option) {
		wg.Go(func() {
			for range h.rounds() {
				lease, err := l.Lock(ctx, "k", opts...)
				if err != nil {
					t.Errorf("Lock beside readers and writers: expected a lease, seen %v", err)
					return
				}
				j.enters(t, kind)
				h.work(t, lease)
				j.leaves(kind)
				unlock(t, lease)
			}
		})
	}
	for _, rw := range rws {
		contend(reader, rw.shared) // callers of a process may share what they have
		for kind, l := range rw.kinds() {
			contend(holder(kind), l, locker.TTL(longTTL))
		}
	}
	wg.Wait()
}

func writerWaitsForReaders(t testing.TB, h Harness) {
	rws, _ := rwlocks(t, h, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	before := []locker.Lease{rws[0].read(t, "k"), rws[1].read(t, "k")}
	writes := wait(ctx, rws[2].exclusive, "k")
	writes.settle(unheard)
	for _, rw := range rws[:2] {
		refused := func() bool { // at once, or when the writer has all locks that were free
			lease, err := rw.shared.TryLock(ctx, "k")
			if err == nil {
				unlock(t, lease)
			}
			return errors.Is(err, locker.ErrHeld)
		}
		if !until(slack, refused) {
			t.Errorf("TryLock of a reader while a writer waits: expected ErrHeld, seen it granted for %v", slack)
		}
	}
	late := wait(ctx, rws[0].shared, "k")
	late.settle(unheard)
	for i, lease := range before {
		if writes.returned() {
			t.Errorf("a writer and %d readers: expected it to wait, seen it return: %v", len(before)-i, writes.err)
		}
		unlock(t, lease)
	}
	await(t, "the writer to be served when the readers have left", writes.done, 2*slack)
	if late.returned() {
		t.Errorf("a reader that came after a writer: expected it to wait, seen it return before the writer has left: %v",
			late.err)
	}
	writes.serve(t, "of a writer behind readers")
	late.serve(t, "of a reader behind a writer")
}

// returned reports whether the call has returned.
func (w *waiter) returned() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func readerPrecedesLaterWriters(t testing.TB, h Harness) {
	rws, _ := rwlocks(t, h, 3)
	need(t, can(rws[0].shared).Order, "Order")
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	for range h.rounds() { // a reader that polls may come before the second writer by chance
		written, _ := acquireWhenFree(t, rws[0].exclusive, "k")
		var ws []*waiter
		for _, l := range []locker.Locker{rws[1].exclusive, rws[2].shared, rws[0].exclusive} {
			w := wait(ctx, l, "k")
			w.settle(unheard)
			ws = append(ws, w)
		}
		unlock(t, written)
		order := served(t, "of readers and writers behind a writer", ws)
		if slices.Index(order, 1) > slices.Index(order, 2) {
			t.Fatalf("a writer, a reader and a writer that wait: expected the reader before the second writer, seen the "+
				"order %v", order)
		}
	}
}

func upgradeLeavesNoGap(t testing.TB, h Harness) {
	rws, _ := rwlocks(t, h, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	before := lock(t, rws[0].upgradeable, "k", locker.TTL(longTTL))
	reads := rws[1].read(t, "k")
	other := wait(ctx, rws[2].exclusive, "k")
	other.settle(unheard)
	upgrade := waitIn(ctx, func(ctx context.Context) (locker.Lease, error) { return rws[0].upgrade(ctx, before) })
	upgrade.settle(unheard)
	if upgrade.returned() {
		t.Fatalf("Upgrade beside a reader: expected it to wait, seen it return: %v", upgrade.err)
	}
	unlock(t, reads)
	await(t, "Upgrade to return when the readers have left", upgrade.done, 2*slack)
	if upgrade.err != nil {
		t.Fatalf("Upgrade: expected a lease, seen %v", upgrade.err)
	}
	if other.returned() {
		t.Errorf("Upgrade while a writer waits: expected that to wait on, seen it return: %v", other.err)
	}
	wantEnded(t, "Upgrade", before)
	wantHeld(t, rws[1].shared, "k")
	unlock(t, upgrade.lease)
	other.serve(t, "of a writer behind one that was upgraded")
}

// wantEnded checks that a lease has ended because another one has taken its place.
func wantEnded(t testing.TB, by string, lease locker.Lease) {
	t.Helper()
	if err := lease.Err(); !errors.Is(err, locker.ErrUnlocked) || !isDone(lease) {
		t.Errorf("a lease after its %s: expected ErrUnlocked and Done closed, seen Err %v, Done closed %v", by, err,
			isDone(lease))
	}
	wantError(t, "Unlock of a lease after its "+by, lease.Unlock(t.Context()), locker.ErrUnlocked)
}

func downgradeLeavesNoGap(t testing.TB, h Harness) {
	rws, _ := rwlocks(t, h, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	for _, waits := range []bool{false, true} {
		before, _ := acquireWhenFree(t, rws[0].exclusive, "k")
		var next *waiter
		if waits {
			next = wait(ctx, rws[1].exclusive, "k")
			next.settle(unheard)
		}
		reads, err := rws[0].downgrade(ctx, before)
		if err != nil {
			t.Fatalf("Downgrade: expected a lease, seen %v", err)
		}
		wantEnded(t, "Downgrade", before)
		wantHeld(t, rws[2].exclusive, "k")
		if !waits {
			unlock(t, rws[1].read(t, "k"))
			unlock(t, reads)
			continue
		}
		if next.returned() {
			t.Errorf("Downgrade while a writer waits: expected that to wait on, seen it return: %v", next.err)
		}
		unlock(t, reads)
		next.serve(t, "of a writer behind one that was downgraded")
	}
}

// partsTTL is short for leases that are made of many locks. In real time, some stores need a moment for each of them.
func (h Harness) partsTTL() time.Duration {
	if h.Bubble != nil {
		return h.short()
	}
	return h.ttl(2 * time.Second)
}

func lostPartIsTold(t testing.TB, h Harness) {
	rws, s := rwlocks(t, h, 2)
	if s.Delete == nil {
		t.Skip("the harness has no Delete")
	}
	ttl := h.partsTTL()
	for _, l := range []locker.Locker{rws[0].shared, rws[0].exclusive} {
		lease, _ := acquireWhenFree(t, l, "k", locker.TTL(ttl))
		h.wantLoss(t, s, lease, ttl)
		wantAllFree(t, rws[1].exclusive, "k")
	}
}

func crashedHolderExpires(t testing.TB, h Harness) {
	rws, _ := rwlocks(t, h, 3)
	ttl := h.partsTTL()
	stays := rws[1].read(t, "read")
	var ends []time.Time
	crash := func(l locker.Locker, key string) locker.Lease {
		lease := lock(t, l, key, locker.TTL(ttl), locker.NoRenewal())
		ends = append(ends, time.Now().Add(ttl))
		return lease
	}
	reads, writes := crash(rws[0].shared, "read"), crash(rws[0].exclusive, "written")
	unlock(t, stays)
	until := reads.Until()
	next, at := nextHolder(t, rws[2].exclusive, "read", true)
	h.wantExpired(t, "what a reader held that has crashed", until, ends[0], at)
	unlock(t, next)
	until = writes.Until()
	next, at = nextHolder(t, rws[2].shared, "written", false)
	h.wantExpired(t, "what a writer held that has crashed", until, ends[1], at)
	unlock(t, next)
}

func cancelledReadersAndWritersLeaveNothing(t testing.TB, h Harness) {
	rws, s := rwlocks(t, h, 3)
	sweep(t, 12, append(rws[0].kinds(), rws[1].exclusive)...)
	reads := rws[2].read(t, "k")
	waitInVain(t, rws[0].exclusive, rws[1].exclusive)
	unlock(t, reads)
	written, _ := acquireWhenFree(t, rws[2].exclusive, "k")
	waitInVain(t, append(rws[0].kinds(), rws[1].shared)...)
	unlock(t, written)
	wantNothingLeft(t, s, rws[0].exclusive)
}

func tokensOfReadersAndWriters(t testing.TB, h Harness) {
	rws, _ := rwlocks(t, h, 2)
	need(t, can(rws[0].shared).Tokens, "Tokens")
	ctx, cancel := context.WithTimeout(t.Context(), 6*hangLimit)
	defer cancel()
	var j traffic
	var wg sync.WaitGroup
	contend := func(once func() (locker.Lease, error)) {
		wg.Go(func() {
			for range h.rounds() {
				lease, err := once()
				if err != nil {
					t.Errorf("Lock, Upgrade or Downgrade beside readers and writers: expected a lease, seen %v", err)
					return
				}
				unlock(t, lease)
			}
		})
	}
	acquire := func(h holder, l locker.Locker) (locker.Lease, error) {
		lease, err := l.Lock(ctx, "k", locker.TTL(longTTL))
		if err == nil {
			j.tokened(t, h, lease.Fence())
		}
		return lease, err
	}
	for _, rw := range rws {
		contend(func() (locker.Lease, error) { return acquire(reader, rw.shared) })
		contend(func() (locker.Lease, error) {
			lease, err := acquire(writer, rw.exclusive)
			if err != nil {
				return nil, err
			}
			fence := lease.Fence()
			lease, err = rw.downgrade(ctx, lease)
			if err == nil && lease.Fence() < fence {
				t.Errorf("Downgrade: expected a token not smaller than the writer's %d, seen %d", fence, lease.Fence())
			}
			return lease, err
		})
		contend(func() (locker.Lease, error) {
			lease, err := acquire(reader, rw.upgradeable)
			if err != nil {
				return nil, err
			}
			if lease, err = rw.upgrade(ctx, lease); err == nil {
				j.tokened(t, writer, lease.Fence())
			}
			return lease, err
		})
	}
	wg.Wait()
}

func holderDoesNotWaitForItself(t testing.TB, h Harness) {
	rws, _ := rwlocks(t, h, 1)
	for _, first := range rws[0].kinds() {
		lease, _ := acquireWhenFree(t, first, "k")
		ctx, cancel := locker.WithLease(t.Context(), lease)
		defer cancel()
		for _, second := range rws[0].kinds() {
			const what = "Lock of a key of which the context carries a lease"
			err := within(t, what, 0, func() error {
				_, err := second.Lock(ctx, "k", locker.TTL(longTTL))
				return err
			})
			if !errors.Is(err, locker.ErrReentrant) {
				t.Errorf("%s: expected an error that matches ErrReentrant, seen %v", what, err)
			}
		}
		other, err := first.Lock(ctx, "another", locker.TTL(longTTL))
		if err != nil {
			t.Fatalf("Lock of another key than that of which the context carries a lease: expected a lease, seen %v", err)
		}
		unlock(t, other)
		unlock(t, lease)
	}
}

func readersAndWritersAreWanted(t testing.TB, h Harness) {
	rws, _ := rwlocks(t, h, 2)
	needWanted(t, can(rws[0].shared))
	holds, others := rws[0], rws[1]
	wanted := func(what string, l, by locker.Locker, change func(context.Context, locker.Lease) (locker.Lease, error)) {
		t.Helper()
		lease := lock(t, l, what, locker.TTL(longTTL))
		if change != nil {
			ctx, cancel := context.WithTimeout(t.Context(), hangLimit)
			defer cancel()
			var err error
			if lease, err = change(ctx, lease); err != nil {
				t.Fatalf("%s, by itself: expected a lease, seen %v", what, err)
			}
		}
		wantWanted(t, what, []locker.Lease{lease}, by, what)
	}
	wanted("a reader", holds.shared, others.exclusive, nil)
	wanted("a writer", holds.exclusive, others.shared, nil)
	wanted("an upgradeable holder", holds.upgradeable, others.upgradeable, nil)
	wanted("a writer after Upgrade", holds.upgradeable, others.shared, holds.upgrade)
	wanted("a reader after Downgrade", holds.exclusive, others.exclusive, holds.downgrade)
}
