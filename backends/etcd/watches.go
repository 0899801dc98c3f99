package etcd

import (
	"context"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// watchAgain is the pause after the end of a stream.
	watchAgain = 200 * time.Millisecond

	// watchRefused is the pause after a watch was refused. The token of the user has expired: each stream logs in. Or the
	// user has no permission.
	watchRefused = 3 * time.Second
)

// watches makes all watches of one kind over one stream. It has two goroutines, from the first watch until the Backend
// is closed, whatever the number of watches. The Watch of etcd's client has a goroutine for each.
type watches struct {
	client pb.WatchClient
	open   context.Context
	news   chan struct{} // has a value if there are requests
	tasks  sync.WaitGroup

	mu       sync.Mutex
	started  bool
	last     int64
	watched  map[int64]*watched // by the number of the watch
	requests []*pb.WatchRequest // that are not sent yet
}

// watched is an entry that is watched for its deletion at revision from or later, or a directory that is watched for
// changes.
type watched struct {
	id   int64 // the number of the watch; 0: there is none
	name string
	dir  bool
	from int64 // 0: from the beginning of the watch on
	told func()
}

func (w *watches) begin(open context.Context, client pb.WatchClient) {
	w.open, w.client, w.news, w.watched = open, client, make(chan struct{}, 1), make(map[int64]*watched)
}

// add watches e. Call with mu held.
func (w *watches) add(e *watched) {
	if w.open.Err() != nil {
		return
	}
	w.last++
	e.id = w.last
	w.watched[e.id] = e
	w.send(e.request())
	if !w.started {
		w.started = true
		w.tasks.Go(w.run)
	}
}

// remove ends the watch of e, if there is one. Call with mu held.
func (w *watches) remove(e *watched) {
	if w.watched[e.id] != e {
		return
	}
	delete(w.watched, e.id)
	cancel := &pb.WatchCancelRequest{WatchId: e.id}
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: cancel}})
}

func (e *watched) request() *pb.WatchRequest {
	create := &pb.WatchCreateRequest{Key: []byte(e.name), StartRevision: e.from, WatchId: e.id}
	if e.dir {
		create.RangeEnd = []byte(clientv3.GetPrefixRangeEnd(e.name))
	} else {
		create.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}
	}
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}
}

// send queues a request. Call with mu held.
func (w *watches) send(q *pb.WatchRequest) {
	w.requests = append(w.requests, q)
	select {
	case w.news <- struct{}{}:
	default: // the sender has not yet seen the last request
	}
}

// run has a stream while there is something to watch, until the Backend is closed.
func (w *watches) run() {
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
func (w *watches) again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = nil
	for _, e := range w.watched {
		w.send(e.request())
	}
}

// connect opens a stream, and returns when it has ended: how long to pause before the next one.
func (w *watches) connect() (pause time.Duration) {
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

// receive tells of what happens to what is watched, until the stream ends.
func (w *watches) receive(s pb.Watch_WatchClient) (pause time.Duration) {
	for {
		resp, err := s.Recv()
		switch {
		case err != nil:
			return watchAgain
		case resp.Created && resp.Canceled:
			return watchRefused
		}
		w.mu.Lock()
		e, ok := w.watched[resp.WatchId]
		tells := ok && e.concerns(resp)
		switch {
		case !ok: // the watch has been removed
		case resp.CompactRevision > 0: // etcd has ended the watch, and does not take its number again
			w.remove(e)
			if !e.dir {
				e.from = resp.CompactRevision // the renewals find out what happened before
			}
			w.add(e)
		case tells && !e.dir:
			w.remove(e)
		}
		w.mu.Unlock()
		if tells {
			e.told()
		}
	}
}

// concerns reports whether a message says that an entry was deleted, or that a directory may have changed. There may
// have been changes before the watch of a directory began. A hand-over gives an entry another lease, and so do
// extensions: that changes no owner.
func (e *watched) concerns(resp *pb.WatchResponse) bool {
	return e.dir && resp.Created || slices.ContainsFunc(resp.Events, func(event *mvccpb.Event) bool {
		created, kept := event.Kv.Version == 1, string(event.Kv.Value) == keptValue
		return event.Type == mvccpb.DELETE || e.dir && (created || kept)
	})
}

// wait returns when the goroutines have ended. It is called after the end of their context.
func (w *watches) wait() {
	w.mu.Lock() // add may be about to start one
	started := w.started
	w.mu.Unlock()
	if started {
		w.tasks.Wait()
	}
}
