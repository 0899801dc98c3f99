package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

// placesEnv is how long each store is tried, such as 10m, or with how many acquisitions. Without it, one store is, for
// seconds.
const placesEnv = "LOCKER_SOAK_PLACES"

// Whatever happens to processes, servers and networks: at most n permits are held at once, no permit has two holders,
// no writer is beside a reader, nobody writes while a lease is upgraded or downgraded, tokens are as promised, each
// call returns, and nothing is left behind.
func TestPlaces(t *testing.T) {
	g := newGoal(t, placesEnv, goal{time: 4 * time.Second, cycles: true})
	onStores(t, 1, g.all, func(tr *trial) {
		tr.boundPlaces()
		began := time.Now()
		// Where an exclusive lock is 64 locks, it takes most of the time, so with a number writers come a tenth as often.
		mixed := 10
		if g.count > 0 {
			mixed = 100
		}
		tr.begin(16, plan{Work: ofPlaces, Mixed: mixed})
		tr.disturb(tr.until(g))
		tr.goesOn()
		took := time.Since(began)
		tr.end()
		tr.nothingLeft(locksOfPlaces)
		tr.verdict()
		tr.report(began, took)
	}, deployment.Files)
}

// boundPlaces tells the judge how many permits there are.
func (tr *trial) boundPlaces() {
	for _, of := range semaphores {
		tr.judge.permits(of.key, slices.Max(of.limits))
	}
}

// locksOfPlaces returns the names in the store of all that permits, shared and exclusive locks are made of.
func locksOfPlaces(l locker.Locker) (locks []string) {
	for _, of := range semaphores {
		locks = append(locks, semaphore.New(l, slices.Max(of.limits)).Locks(of.key)...)
	}
	for _, key := range shelves {
		locks = append(locks, rwlock.New(l).Locks(key)...)
	}
	return locks
}

// goesOn waits until leases of each kind were acquired of each key, when nothing is disturbed any more.
func (tr *trial) goesOn() {
	tr.Helper()
	since := now()
	await := func(key string, k kind) {
		tr.await(since, 2, key+" was held: "+string(k), func(s *span) bool { return s.Key == key && s.Kind == k })
	}
	for _, of := range semaphores {
		await(of.key, permit)
	}
	for _, key := range shelves {
		await(key, shared)
		await(key, upgradeable)
		await(key, exclusive)
	}
}

// nothingLeft fails the test if something with one of the names stays held, after all processes have ended.
func (tr *trial) nothingLeft(names func(l locker.Locker) []string) {
	tr.Helper()
	l := tr.open()
	defer func() { _ = l.Close() }()
	if err := allFree(tr.Context(), l, names(l)); err != nil {
		tr.Error(err)
	}
}

// leftLimit is how long locks of callers that have died may stay held.
const leftLimit = 20 * time.Second

// allFree waits until none of the locks is held or waited for, and returns an error if that takes too long.
func allFree(ctx context.Context, l locker.Locker, locks []string) error {
	i, ok := locker.As[inspect.Inspector](l)
	if !ok {
		return errors.New("the Locker shows nothing")
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(leftLimit); len(locks) > 0; {
		seen, err := i.Inspect(ctx, locks[0])
		switch {
		case err == nil && seen.State == inspect.Free && seen.Waiting == 0:
			locks = locks[1:]
		case time.Now().After(end):
			return errors.Join(fmt.Errorf("%s is left behind: %+v", locks[0], seen), err)
		default:
			<-tick.C
		}
	}
	return nil
}

// A limit changes by a rolling restart from 3 to 5 and back, and callers go on to get permits. There are never more
// than 5, no program has a permit that is not below its own limit, and once the last program with 5 has ended, there
// are never more than 3.
func TestPlacesWhileLimitsChange(t *testing.T) {
	g := newGoal(t, placesEnv, goal{time: 4 * time.Second, cycles: true})
	onStores(t, 1, g.all, func(tr *trial) {
		processes, rounds := 4, 1
		if g.all {
			processes, rounds = 16, 3
		}
		few, many := plan{Work: ofLimits, Limit: 3}, plan{Work: ofLimits, Limit: 5}
		began := time.Now()
		tr.judge.permits(changing, few.Limit)
		tr.begin(processes, few)
		for range rounds {
			tr.await(now(), 50, "a permit was held", func(*span) bool { return true })
			tr.roll(many)
			tr.await(now(), 10, "one of the new permits was held", func(s *span) bool {
				return slices.ContainsFunc(s.Slots, func(slot int) bool { return slot >= few.Limit })
			})
			tr.roll(few)
		}
		tr.await(now(), 50, "a permit was held", func(*span) bool { return true })
		took := time.Since(began)
		tr.end()
		tr.nothingLeft(func(l locker.Locker) []string { return semaphore.New(l, many.Limit).Locks(changing) })
		tr.verdict()
		tr.report(began, took)
	})
}

// roll replaces one process after the other. Every fourth of them is killed. After each, it waits until the new process
// and the others have gone on to get permits.
func (tr *trial) roll(p plan) {
	tr.Helper()
	tr.judge.permits(changing, max(p.Limit, tr.all[0].Limit))
	for i := range tr.all {
		tr.replace(i, p, i%4 == 3)
		if i == len(tr.all)-1 {
			tr.judge.permits(changing, p.Limit)
		}
		who, since := tr.all[i].Who, now()
		tr.await(since, 3, "the new process held a permit", func(s *span) bool { return s.who == who })
		tr.await(since, len(tr.all), "another process held a permit", func(s *span) bool { return s.who != who })
	}
}

// await waits until n leases of which is says so were relied on by holders who had them after a time.
func (tr *trial) await(since int64, n int, what string, is func(s *span) bool) {
	tr.Helper()
	more := func(s *span) bool { return s.At > since && s.last > 0 && is(s) }
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(hangLimit); tr.judge.count(more) < n; <-tick.C {
		if time.Now().After(end) {
			tr.Fatalf("not within %v: %d times %s", hangLimit, n, what)
		}
	}
	tr.judge.overdue(limit + slack)
}
