package kuberneteslock

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// watcher is what a client for Leases may also be. client-go's LeaseInterface is one.
type watcher interface {
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

const (
	// maxWatches bounds the watches of a Store, one for each lock that this process waits for. Waiters for others look at
	// intervals. A watch has a connection of its own, because the Store speaks HTTP/1.1.
	maxWatches = 64

	// watching is how long a watch lasts. The network may have forgotten its connection, so that nothing comes any more.
	watching = 5 * time.Minute

	// watchGrace is for how much longer the API server may take to end it.
	watchGrace = 10 * time.Second

	firstPause = time.Second // after a watch that has ended; each is twice as long as the one before
	lastPause  = time.Minute
)

// Watch implements [record.Watcher], with a watch of the one Lease: one of the namespace would bring all renewals of
// all locks to each process. It needs the right to watch. Otherwise, and if the client cannot watch, waiters look at
// intervals.
func (s *Store) Watch(name string, changed func()) (live func() bool, stop func()) {
	var alive atomic.Bool
	w, ok := s.leases.(watcher)
	if !ok {
		return alive.Load, func() {}
	}
	select {
	case s.watches <- struct{}{}:
	default:
		return alive.Load, func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer func() { <-s.watches }()
		opts := metav1.ListOptions{FieldSelector: "metadata.name=" + objectName(name)}
		for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, lastPause) {
			if follow(ctx, w, opts, &alive, changed) >= lastPause {
				pause = firstPause
			}
			t := time.NewTimer(pause/2 + rand.N(pause/2))
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
		}
	}()
	return alive.Load, cancel
}

// follow makes one watch, and returns how long it has lasted. It names no resourceVersion, so that it begins with the
// most recent state, and none can be too old. What comes after an error, such as that a version is too old, is another
// watch.
func follow(
	ctx context.Context, w watcher, opts metav1.ListOptions, alive *atomic.Bool, changed func(),
) (lasted time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, watching+watchGrace)
	defer cancel()
	seconds := int64(watching / time.Second)
	opts.TimeoutSeconds = &seconds
	events, err := w.Watch(ctx, opts)
	if err != nil {
		return 0
	}
	began := time.Now()
	defer events.Stop()
	alive.Store(true)
	defer changed() // it looks more often now
	defer alive.Store(false)
	changed()
	for e := range events.ResultChan() {
		if e.Type == watch.Error {
			break
		}
		changed()
	}
	return time.Since(began)
}
