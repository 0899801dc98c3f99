package conformance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/semaphore"
)

// RunSemaphore checks that package semaphore works over the store, with one subtest per property.
func RunSemaphore(t *testing.T, h Harness) {
	if h.Store == nil {
		t.Fatal("conformance: Harness needs Store")
	}
	run(t, h, h.Bubble, semaphoreProperties)
}

var semaphoreProperties = []property[Harness]{
	{
		"PermitsAreLimited",
		"A key has n holders at a time if so many ask, and no more than n, across all clients of the store.",
		"To hold the others back is the purpose of a semaphore; with fewer holders, callers wait although there is room.",
		permitsAreLimited,
	},
	{
		"PermitsAreRefused",
		"TryLock of more permits than are free fails with ErrHeld and no other sentinel error, also for a client that has " +
			"some, and takes none of those that are free.",
		"A caller that was told that it has nothing returns nothing: permits that it has nevertheless are missing for a " +
			"whole TTL.",
		permitsAreRefused,
	},
	{
		"PermitsAllOrNothing",
		"Callers that need several permits have all of them when Lock returns, and callers of different weights that wait " +
			"at the same time are all served.",
		"Callers that each have a part of what they need would wait for each other for ever.",
		permitsAllOrNothing,
	},
	{
		"ReturnedPermitIsTaken",
		"A permit that is returned goes to a caller that waits, whichever of the permits it is.",
		"A caller that waits for one of the permits would wait as long as its holder works, although another is free.",
		returnedPermitIsTaken,
	},
	{
		"PermitsServedInOrder",
		"Callers that wait for permits are served in the order in which they began to wait, whatever their weights.",
		"A caller that needs many permits would never find enough of them free if others were served before it.",
		permitsServedInOrder,
	},
	{
		"CrashedPermitExpires",
		"The permit of a holder that has crashed goes to the next caller when its TTL is over, to TryLock and to a waiting " +
			"Lock, and not before its Until; other holders keep theirs.",
		"Each crash would leave one permit less until there is none, or a holder would work beside one more than n.",
		crashedPermitExpires,
	},
	{
		"CancelledPermitsLeaveNothing",
		"Lock and TryLock leave no permit behind, and nothing that others wait for, at whatever moment their context ends.",
		"A permit that is acquired for a caller who has gone away is missing for a whole TTL.",
		cancelledPermitsLeaveNothing,
	},
	{
		"LimitsMayDiffer",
		"If programs use a key with different n, it has at most as many holders as the greatest n says, and a program is " +
			"refused if all permits below its own n are held.",
		"While a new limit is rolled out, programs with the old one are still running.",
		limitsMayDiffer,
	},
	{
		"LostPermitIsTold",
		"If the store loses a lock that a permit is made of, the lease ends with ErrLost within one TTL, and Unlock " +
			"reports ErrNotHeld.",
		"The holder continues to work while somebody else has its permit.",
		lostPermitIsTold,
	},
	{
		"PermitsHaveNumbers",
		"Permits that are held at the same time have different numbers below n, which a lease lists in ascending order, " +
			"and a permit has a greater fencing token than all earlier ones of its number; 0 without Tokens.",
		"Holders divide resources by these numbers, and each resource compares the tokens of one number.",
		permitsHaveNumbers,
	},
	{
		"PermitsAreWanted",
		"The channel of locker.Wanted of each holder of permits is closed when another client waits for some, with the " +
			"answer to an Extend at the latest, and stays open while nobody waits.",
		"Holders that can stop early make room when it is closed: the others would wait until a holder has ended, or " +
			"holders would stop for nobody.",
		permitsAreWanted,
	},
}

// semaphores makes count clients for a fresh store. of makes a semaphore with n permits from the Locker of one of them,
// which acquires weight of the permits with each call.
func semaphores(t testing.TB, h Harness, count int) (of func(client, n, weight int) locker.Locker, s Store) {
	t.Helper()
	ls, s := clients(t, h, count)
	return func(client, n, weight int) locker.Locker {
		if h.semaphore != nil {
			return h.semaphore(ls[client], n, weight)
		}
		return semaphore.New(ls[client], n).Weight(weight)
	}, s
}

func permitsAreLimited(t testing.TB, h Harness) {
	const n = 3
	of, _ := semaphores(t, h, n)
	var all []locker.Locker
	var held []locker.Lease
	for i := range n {
		all = append(all, of(i, n, 1))
		held = append(held, lock(t, all[i], "k", locker.TTL(longTTL)))
	}
	for _, lease := range held {
		unlock(t, lease)
	}
	var inside atomic.Int32
	contend(t, all, 4, func(lease locker.Lease, _ time.Time) {
		if now := inside.Add(1); now > n {
			t.Errorf("expected at most %d holders, seen %d at once", n, now)
		}
		h.work(t, lease)
		inside.Add(-1)
		unlock(t, lease)
	})
}

func permitsAreRefused(t testing.TB, h Harness) {
	const n = 3
	of, _ := semaphores(t, h, n)
	two := lock(t, of(0, n, 2), "k", locker.TTL(longTTL))
	wantHeld(t, of(1, n, 2), "k")
	wantHeld(t, of(0, n, n), "k")
	one, _ := acquireWhenFree(t, of(2, n, 1), "k") // which the refused calls have not taken
	for client := range n {
		wantHeld(t, of(client, n, 1), "k")
	}
	unlock(t, one)
	unlock(t, two)
	wantAllFree(t, of(1, n, n), "k")
}

func permitsAllOrNothing(t testing.TB, h Harness) {
	const n, rounds = 3, 4
	of, _ := semaphores(t, h, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	var held atomic.Int32
	var wg sync.WaitGroup
	for i := range 6 {
		weight := 2 + i%2
		l := of(i/2, n, weight)
		wg.Go(func() {
			for range rounds {
				lease, err := l.Lock(ctx, "k", locker.TTL(longTTL))
				if err != nil {
					t.Errorf("Lock of %d of %d permits beside other calls: expected a lease, seen %v", weight, n, err)
					return
				}
				if now := held.Add(int32(weight)); now > n {
					t.Errorf("expected at most %d permits to be held, seen %d", n, now)
				}
				h.work(t, lease)
				held.Add(-int32(weight))
				unlock(t, lease)
			}
		})
	}
	wg.Wait()
}

func returnedPermitIsTaken(t testing.TB, h Harness) {
	const n = 3
	of, _ := semaphores(t, h, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	for i := range n {
		var held []locker.Lease
		for client := range n {
			lease, _ := acquireWhenFree(t, of(client, n, 1), "k")
			held = append(held, lease)
		}
		w := wait(ctx, of(i, n, 1), "k")
		w.settle(unheard)
		released := time.Now()
		unlock(t, held[i])
		w.serve(t, "of a permit while all are held")
		if late := w.at.Sub(released); late > slack && w.err == nil {
			t.Errorf("expected the permit that was returned soon, seen one after %v", late)
		}
		for _, lease := range slices.Delete(held, i, i+1) {
			unlock(t, lease)
		}
	}
}

func permitsServedInOrder(t testing.TB, h Harness) {
	const n, rounds = 2, 3
	of, _ := semaphores(t, h, 5)
	need(t, can(of(0, n, 1)).Order, "Order")
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	for range rounds {
		holder, _ := acquireWhenFree(t, of(0, n, n), "k")
		var ws []*waiter
		for client := 1; client < 5; client++ {
			w := wait(ctx, of(client, n, 1+client%n), "k") // no two in a row have room beside each other
			w.settle(unheard)
			ws = append(ws, w)
		}
		unlock(t, holder)
		if order := served(t, "of permits, behind other waiters", ws); !slices.IsSorted(order) {
			t.Fatalf("expected the permits in the order of arrival, seen %v", order)
		}
	}
}

func crashedPermitExpires(t testing.TB, h Harness) {
	const n = 2
	of, _ := semaphores(t, h, 3)
	var crashed, stay []locker.Lease
	var ends []time.Time
	keys := []string{"a", "b"}
	for _, key := range keys {
		crashed = append(crashed, lock(t, of(0, n, 1), key, locker.TTL(h.short()), locker.NoRenewal()))
		ends = append(ends, time.Now().Add(h.short()))
		stay = append(stay, lock(t, of(1, n, 1), key, locker.TTL(longTTL)))
	}
	for i, key := range keys {
		until := crashed[i].Until()
		next, at := nextHolder(t, of(2, n, 1), key, i == 0)
		h.wantExpired(t, "a permit whose holder has crashed", until, ends[i], at)
		unlock(t, next)
		unlock(t, stay[i])
	}
}

func cancelledPermitsLeaveNothing(t testing.TB, h Harness) {
	const n = 2
	of, s := semaphores(t, h, 3)
	sweep(t, 40, of(0, n, 1), of(1, n, 2))
	for weight := 1; weight <= n; weight++ {
		holder, _ := acquireWhenFree(t, of(2, n, weight), "k")
		waitInVain(t, of(0, n, n), of(1, n, n+1-weight))
		unlock(t, holder)
	}
	wantNothingLeft(t, s, of(2, n, n))
}

func limitsMayDiffer(t testing.TB, h Harness) {
	const before, after = 2, 4
	of, _ := semaphores(t, h, 2)
	var held []locker.Lease
	for i := range after {
		n := before
		if i >= before {
			n = after
		}
		held = append(held, lock(t, of(i%2, n, 1), "k", locker.TTL(longTTL)))
		if i >= before-1 {
			wantHeld(t, of(i%2, before, 1), "k")
		}
	}
	wantHeld(t, of(0, after, 1), "k")
	unlock(t, held[after-1])
	wantHeld(t, of(0, before, 1), "k")
	held[after-1], _ = acquireWhenFree(t, of(1, after, 1), "k")
	for _, lease := range held {
		unlock(t, lease)
	}
	all, _ := acquireWhenFree(t, of(1, after, after), "k")
	wantHeld(t, of(0, before, 1), "k")
	unlock(t, all)
}

func lostPermitIsTold(t testing.TB, h Harness) {
	const n = 2
	of, s := semaphores(t, h, 2)
	if s.Delete == nil {
		t.Skip("the harness has no Delete")
	}
	for weight := 1; weight <= n; weight++ {
		lease, _ := acquireWhenFree(t, of(0, n, weight), "k", locker.TTL(h.short()))
		h.wantLoss(t, s, lease, h.short())
		wantAllFree(t, of(1, n, n), "k")
	}
}

func permitsHaveNumbers(t testing.TB, h Harness) {
	const n = 3
	of, _ := semaphores(t, h, n)
	numbers := func(lease locker.Lease) []int {
		p, ok := locker.LeaseAs[interface{ Slots() []int }](lease)
		if !ok {
			t.Skip("the leases have no method Slots")
		}
		return p.Slots()
	}
	tokens := map[int]*growing{}
	for number := range n {
		tokens[number] = &growing{unfenced: !can(of(0, n, 1)).Tokens}
	}
	for round := range 4 {
		for _, weights := range [][]int{{1, 1, 1}, {2, 1}} {
			var held []locker.Lease
			var seen []int
			for i, weight := range weights {
				lease, _ := acquireWhenFree(t, of((round+i)%n, n, weight), "k")
				its := numbers(lease)
				if len(its) != weight || !slices.IsSorted(its) {
					t.Fatalf("a lease of %d permits: expected as many numbers, in order, seen %v", weight, its)
				}
				if weight == 1 && tokens[its[0]] != nil {
					tokens[its[0]].next(t, "a permit after others of its number", lease.Fence())
				}
				held, seen = append(held, lease), append(seen, its...)
			}
			if slices.Sort(seen); !slices.Equal(seen, []int{0, 1, 2}) {
				t.Errorf("all permits at the same time: expected the numbers 0, 1 and 2, seen %v", seen)
			}
			for _, lease := range held {
				unlock(t, lease)
			}
		}
	}
}

func permitsAreWanted(t testing.TB, h Harness) {
	const n = 2
	of, _ := semaphores(t, h, 3)
	needWanted(t, can(of(0, n, 1)))
	for i, weights := range [][]int{{1, 1}, {n}} {
		key := fmt.Sprint("k", i)
		var held []locker.Lease
		for client, weight := range weights {
			held = append(held, lock(t, of(client, n, weight), key, locker.TTL(longTTL)))
		}
		wantHeld(t, of(2, n, 1), key)
		wantWanted(t, fmt.Sprintf("holders of permits, with the weights %d", weights), held, of(2, n, 1), key)
	}
}
