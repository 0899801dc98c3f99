package filelock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/filelock"
	"github.com/golocker/locker/record"
)

// handOver has a waiter wait for a lock that is released when ready says so.
func handOver(t *testing.T, holder, waiter *filelock.Store, poll time.Duration, ready func() bool) {
	t.Helper()
	held, err := record.New(holder).TryLock(t.Context(), "k", locker.TTL(time.Hour), locker.NoRenewal())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		lease, err := record.New(waiter, record.Poll(poll)).Lock(ctx, "k")
		if err != nil {
			t.Error(err)
			return
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for !ready() {
		<-time.After(time.Millisecond)
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func twoStores(t *testing.T) (holder, waiter *filelock.Store) {
	t.Helper()
	dir := t.TempDir()
	for _, s := range []**filelock.Store{&holder, &waiter} {
		var err error
		if *s, err = filelock.OpenStore(dir); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*s).Close() })
	}
	return holder, waiter
}

// A waiter that would look after minutes has the lock when it is released.
func TestWaitersAreToldOfReleases(t *testing.T) {
	holder, waiter := twoStores(t)
	handOver(t, holder, waiter, time.Hour, func() bool { return filelock.Watched(waiter, "k") })
	if filelock.Watched(waiter, "k") {
		t.Error("the watch has not ended")
	}
}

// If the kernel has no more watches for this user, waiters look at intervals.
func TestKernelWithoutWatches(t *testing.T) {
	holder, waiter := twoStores(t)
	tried := make(chan bool, 100)
	filelock.WatchBy(waiter, func() (*os.File, error) {
		tried <- true
		return nil, errors.New("no space left on device")
	})
	handOver(t, holder, waiter, 20*time.Millisecond, func() bool { return len(tried) > 0 })
}

// If the kernel has no room for more news, it may have left out any.
func TestKernelHasLeftOutNews(t *testing.T) {
	if names, all := filelock.Changes(nil); names != nil || all {
		t.Errorf("nothing: %v, %v", names, all)
	}
	overflow := make([]byte, 16)
	overflow[5] = 0x40 // IN_Q_OVERFLOW
	if names, all := filelock.Changes(overflow); names != nil || !all {
		t.Errorf("an overflow: %v, %v", names, all)
	}
}

// Watches end with the Store, also those that nobody has stopped.
func TestWatchesEndWithTheStore(t *testing.T) {
	s, _ := twoStores(t)
	var began sync.WaitGroup
	for i := range 100 {
		began.Add(1)
		_, stop := s.Watch(fmt.Sprint(i), sync.OnceFunc(began.Done))
		defer stop()
	}
	began.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	live, stop := s.Watch("k", func() {})
	for live() {
		<-time.After(time.Millisecond)
	}
	stop()
}
