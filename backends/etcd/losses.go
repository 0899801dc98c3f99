package etcd

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
)

const (
	// watchAfter is how long a lock is held before its entry is watched. So a short critical section costs etcd no watch.
	// A deletion before that is reported then, because a watch begins with the past.
	watchAfter = 250 * time.Millisecond

	// watchAgain is the pause after the end of a stream.
	watchAgain = 200 * time.Millisecond

	// watchRefused is the pause after a watch was refused. The token of the user has expired: each stream logs in. Or the
	// user has no permission.
	watchRefused = 3 * time.Second
)

// losses watches the entries of the locks that a Backend holds, over one stream. It has two goroutines while there is
// one, whatever the number of locks. The Watch of etcd's client has a goroutine for each.
type losses struct {
	client pb.WatchClient
	open   context.Context
	news   chan struct{} // has a value if there are requests
	tasks  sync.WaitGroup

	mu       sync.Mutex
	started  bool
	last     int64
	held     map[int64]*heldEntry // by the number of the watch
	requests []*pb.WatchRequest   // that are not sent yet
}

// heldEntry is an entry that is watched for its deletion at revision from or later.
type heldEntry struct {
	id   int64 // the number of the watch; 0: there is none
	name string
	from int64
	gone func()
}

func (w *losses) begin(open context.Context, client pb.WatchClient) {
	w.open, w.client, w.news, w.held = open, client, make(chan struct{}, 1), make(map[int64]*heldEntry)
}

// NotifyLoss implements [locker.LossNotifier].
func (b *Backend) NotifyLoss(req locker.Request, lost func(err error)) (stop func()) {
	w := &b.losses
	e := &heldEntry{
		name: b.entry(req.Key, req.Token), from: int64(req.Fence) + 1, gone: func() { lost(locker.ErrNotHeld) },
	}
	stopped := false // guarded by the mu of w
	timer := time.AfterFunc(watchAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !stopped {
			w.add(e)
		}
	})
	return func() {
		timer.Stop()
		w.mu.Lock()
		defer w.mu.Unlock()
		stopped = true
		w.remove(e)
	}
}

// add watches e. Call with mu held.
func (w *losses) add(e *heldEntry) {
	if w.open.Err() != nil {
		return
	}
	w.last++
	e.id = w.last
	w.held[e.id] = e
	w.send(e.request())
	if !w.started {
		w.started = true
		w.tasks.Go(w.run)
	}
}

// remove ends the watch of e, if there is one. Call with mu held.
func (w *losses) remove(e *heldEntry) {
	if w.held[e.id] != e {
		return
	}
	delete(w.held, e.id)
	cancel := &pb.WatchCancelRequest{WatchId: e.id}
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: cancel}})
}

func (e *heldEntry) request() *pb.WatchRequest {
	create := &pb.WatchCreateRequest{
		Key: []byte(e.name), StartRevision: e.from, WatchId: e.id,
		Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT},
	}
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}
}

// send queues a request. Call with mu held.
func (w *losses) send(q *pb.WatchRequest) {
	w.requests = append(w.requests, q)
	select {
	case w.news <- struct{}{}:
	default: // the sender has not yet seen the last request
	}
}

// run has a stream while there is something to watch, until the Backend is closed.
func (w *losses) run() {
	for {
		var d time.Duration
		select {
		case <-w.news:
			d = w.connect()
		case <-w.open.Done():
			return
		}
		pause := time.NewTimer(d)
		select {
		case <-pause.C:
		case <-w.open.Done():
		}
		pause.Stop()
		w.again()
	}
}

// again queues the requests for a new stream.
func (w *losses) again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = nil
	for _, e := range w.held {
		w.send(e.request())
	}
}

// connect opens a stream, and returns when it has ended: how long to pause before the next one.
func (w *losses) connect() (pause time.Duration) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(w.open))
	defer cancel()
	s, err := w.client.Watch(ctx)
	if err != nil {
		return watchAgain
	}
	ended := make(chan struct{})
	w.tasks.Go(func() {
		defer close(ended)
		pause = w.receive(s)
	})
	for err == nil {
		w.mu.Lock()
		requests := w.requests
		w.requests = nil
		w.mu.Unlock()
		for _, q := range requests {
			if err = s.Send(q); err != nil {
				break
			}
		}
		select {
		case <-w.news:
		case <-ended:
			return pause
		}
	}
	cancel()
	<-ended
	return pause
}

// receive reports the entries that are deleted, until the stream ends.
func (w *losses) receive(s pb.Watch_WatchClient) (pause time.Duration) {
	for {
		resp, err := s.Recv()
		switch {
		case err != nil:
			return watchAgain
		case resp.Created && resp.Canceled:
			return watchRefused
		}
		deleted := false
		for _, event := range resp.Events {
			deleted = deleted || event.Type == mvccpb.DELETE
		}
		w.mu.Lock()
		e, ok := w.held[resp.WatchId]
		switch {
		case !ok: // the watch has been removed
		case deleted:
			w.remove(e)
		case resp.CompactRevision > 0: // the renewals find out what happened before
			w.remove(e) // etcd does not take the number again
			e.from = resp.CompactRevision
			w.add(e)
		}
		w.mu.Unlock()
		if ok && deleted {
			e.gone()
		}
	}
}

// wait returns when the goroutines have ended. It is called after the end of their context.
func (w *losses) wait() {
	w.mu.Lock() // add may be about to start one
	started := w.started
	w.mu.Unlock()
	if started {
		w.tasks.Wait()
	}
}
