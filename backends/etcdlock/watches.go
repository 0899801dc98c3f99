package etcdlock

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// watchAgain is the pause after the end of a stream.
	watchAgain = 200 * time.Millisecond

	// watchRefused is the pause after a watch was refused. The user has no permission, and the other watches go on. Or the
	// token of the user has expired, and all watches begin again: each stream logs in.
	watchRefused = 3 * time.Second
)

// watches makes all watches of one kind over one stream. It has two goroutines, from the first watch until the backend
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
	asked    []int64            // the numbers of watches that the stream was asked for and has not answered, in order
}

// watched is an entry, or a range of entries, that is watched for a deletion at revision from or later, or a directory
// that is watched for changes.
type watched struct {
	id   int64 // the number of the watch; 0: there is none
	name string
	end  string // of a range, which begins with name
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

// removeAll ends the watches of all. Call with mu held.
func (w *watches) removeAll(all []*watched) {
	for _, e := range all {
		w.remove(e)
	}
}

// has reports whether all are watched still, and have these names. Call with mu held.
func (w *watches) has(all []*watched, names ...string) bool {
	return slices.EqualFunc(all, names, func(e *watched, name string) bool {
		return w.watched[e.id] == e && e.name == name
	})
}

func (e *watched) request() *pb.WatchRequest {
	create := &pb.WatchCreateRequest{Key: []byte(e.name), StartRevision: e.from, WatchId: e.id}
	if e.dir {
		e.end = clientv3.GetPrefixRangeEnd(e.name)
	} else {
		create.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}
	}
	create.RangeEnd = []byte(e.end)
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

// run has a stream from the first watch on, until the backend is closed. The stream stays while nothing is watched, so
// that the next watch need not wait for a new one.
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
	w.mu.Lock()
	w.asked = nil
	w.mu.Unlock()
	ended := make(chan struct{})
	w.tasks.Go(func() {
		defer close(ended)
		pause = w.receive(s)
	})
	for err == nil {
		w.mu.Lock()
		requests := w.requests
		w.requests = nil
		for _, q := range requests {
			if create := q.GetCreateRequest(); create != nil {
				w.asked = append(w.asked, create.WatchId)
			}
		}
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
		if err != nil {
			return watchAgain
		}
		w.mu.Lock()
		if resp.Created && !w.answered(resp) {
			w.mu.Unlock()
			return watchRefused
		}
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

// answered takes note of the answer to a request for a watch, and reports whether the stream is of use. etcd answers
// these requests in their order, and does not say which watch it refuses. A refusal for lack of permission concerns one
// watch, which is asked for again after a pause. Other refusals concern the stream. "etcd grpc-proxy" gives watches
// numbers of its own, and answers in any order, so a stream to it is of no use. Call with mu held.
func (w *watches) answered(resp *pb.WatchResponse) bool {
	if len(w.asked) == 0 {
		return false
	}
	id := w.asked[0]
	w.asked = w.asked[1:]
	switch e := w.watched[id]; {
	case !resp.Canceled:
		return resp.WatchId == id
	case resp.CancelReason != rpctypes.ErrGRPCPermissionDenied.Error():
		return false
	case e != nil:
		time.AfterFunc(watchRefused, func() { w.retry(e, id) })
	}
	return true
}

// retry asks for a watch again that was refused with the number id, unless it has been removed or asked for meanwhile.
func (w *watches) retry(e *watched, id int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watched[id] == e {
		w.remove(e) // a new stream may have been asked for it with the same number
		w.add(e)
	}
}

// concerns reports whether a message says that an entry was deleted, or that a directory may have changed. There may
// have been changes before the watch of a directory began. A hand-over gives an entry another lease, and so do
// extensions: that changes no owner. The key is checked, because the number may be that of another watch until answered
// finds this out.
func (e *watched) concerns(resp *pb.WatchResponse) bool {
	return e.dir && resp.Created || slices.ContainsFunc(resp.Events, func(event *mvccpb.Event) bool {
		key, created, kept := string(event.Kv.Key), event.Kv.Version == 1, string(event.Kv.Value) == keptValue
		if e.dir {
			return strings.HasPrefix(key, e.name) && (event.Type == mvccpb.DELETE || created || kept)
		}
		return event.Type == mvccpb.DELETE && (key == e.name || e.name < key && key < e.end)
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

// watch is that of an entry.
type watch struct {
	entry string
	from  int64 // the revision from which on deletions count
	gone  clientv3.WatchChan
	end   func()
}

// begin returns a channel that has an event when entry is deleted, and is closed when ctx ends. It ends a watch of
// another entry. If etcd does not answer, the channel is closed after a while.
//
// The watch has none of the values of ctx: those that become metadata would make the client open a stream for each.
func (w *watch) begin(ctx context.Context, b *store, entry string) clientv3.WatchChan {
	if w.gone != nil && w.entry == entry {
		return w.gone
	}
	w.stop()
	inner, cancel := context.WithCancel(clientv3.WithRequireLeader(b.open))
	ended := context.AfterFunc(ctx, cancel)
	late := time.AfterFunc(silence, cancel)
	w.entry, w.end = entry, func() { ended(); cancel() }
	w.gone = b.client.Watch(inner, entry, clientv3.WithRev(w.from), clientv3.WithFilterPut())
	late.Stop()
	return w.gone
}

func (w *watch) stop() {
	if w.end != nil {
		w.end()
	}
	w.gone, w.end = nil, nil
}
