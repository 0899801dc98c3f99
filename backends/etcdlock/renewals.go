package etcdlock

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// renewals renews the leases of waiters over one stream. It has two goroutines while there is a stream, whatever the
// number of leases. Those of holders are never renewed: see move.
//
// KeepAliveOnce of etcd's client opens a stream for each call, with a login if there is a user, and tries again without
// a pause while etcd cannot be reached. KeepAlive has a goroutine for each lease, and chooses the times itself.
type renewals struct {
	client  pb.LeaseClient
	open    context.Context
	suspect func()        // is told that a renewal was not answered
	news    chan struct{} // has a value if there are requests
	tasks   sync.WaitGroup

	mu       sync.Mutex
	started  bool
	requests []renewal
	stream   *renewalStream
}

// renewal is a request to renew a lease. The channel has room for the answer.
type renewal struct {
	id     clientv3.LeaseID
	answer chan renewed
	sent   time.Time // over a stream
}

// renewed is the answer. ttl is the new TTL in seconds; 0 means that there is no such lease.
type renewed struct {
	ttl int64
	err error
}

// renewalStream is a connection to one member of etcd, which answers the requests in their order. An answer counts for
// one request: a later one for the same lease may get lost although an earlier one was answered late.
type renewalStream struct {
	pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc

	// These are guarded by the mu of renewals.
	waiting []renewal // that are not answered
	heard   time.Time // when the last answer came
	ended   bool
}

// silent reports whether nothing was answered for a while.
func (s *renewalStream) silent() bool {
	return len(s.waiting) > 0 && time.Since(s.waiting[0].sent) >= silence && time.Since(s.heard) >= silence
}

var errStream = errors.New("the stream of renewals has ended")

func (r *renewals) begin(open context.Context, client pb.LeaseClient, suspect func()) {
	r.open, r.client, r.suspect, r.news = open, client, suspect, make(chan struct{}, 1)
}

// send asks for a renewal, and does not wait. The answer comes at some time, if only when the stream ends.
func (r *renewals) send(id clientv3.LeaseID) <-chan renewed {
	answer := make(chan renewed, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open.Err() != nil {
		answer <- renewed{err: errStream}
		return answer
	}
	r.requests = append(r.requests, renewal{id: id, answer: answer})
	if !r.started {
		r.started = true
		r.tasks.Go(r.run)
	}
	select {
	case r.news <- struct{}{}:
	default: // run has not yet seen the last request
	}
	return answer
}

// silence is how long nothing may be answered until a stream counts as broken. The next renewal then goes to another
// member, if there is one.
const silence = time.Second

// await waits for an answer.
func (r *renewals) await(ctx context.Context, answer <-chan renewed) (ttl int64, err error) {
	select {
	case a := <-answer:
		return a.ttl, a.err
	case <-ctx.Done():
	}
	r.suspect()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream != nil && r.stream.silent() {
		r.stream.cancel()
	}
	return 0, ctx.Err()
}

// run sends the requests until the backend is closed.
func (r *renewals) run() {
	for {
		select {
		case <-r.news:
		case <-r.open.Done():
			r.fail(r.take(), errStream)
			return
		}
		r.pass(r.take())
	}
}

func (r *renewals) take() []renewal {
	r.mu.Lock()
	defer r.mu.Unlock()
	requests := r.requests
	r.requests = nil
	return requests
}

func (r *renewals) fail(requests []renewal, err error) {
	for _, q := range requests {
		q.answer <- renewed{err: err}
	}
}

// pass sends requests over the stream, which it opens if there is none.
func (r *renewals) pass(requests []renewal) {
	s, err := r.connect()
	if err != nil {
		r.fail(requests, err)
		return
	}
	for i, q := range requests {
		r.mu.Lock()
		ended := s.ended
		if !ended {
			q.sent = time.Now()
			s.waiting = append(s.waiting, q)
		}
		r.mu.Unlock()
		if ended {
			r.fail(requests[i:], errStream)
			return
		}
		if err := s.Send(&pb.LeaseKeepAliveRequest{ID: int64(q.id)}); err != nil {
			s.cancel() // receive ends the stream
		}
	}
}

func (r *renewals) connect() (*renewalStream, error) {
	r.mu.Lock()
	s := r.stream
	r.mu.Unlock()
	if s != nil {
		return s, nil
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(r.open))
	late := time.AfterFunc(DefaultTimeout, cancel)
	stream, err := r.client.LeaseKeepAlive(ctx)
	if err == nil && !late.Stop() {
		err = context.DeadlineExceeded
	}
	if err != nil {
		late.Stop()
		cancel()
		return nil, err
	}
	s = &renewalStream{Lease_LeaseKeepAliveClient: stream, cancel: cancel}
	r.mu.Lock()
	r.stream = s
	r.mu.Unlock()
	r.tasks.Go(func() { r.receive(s) })
	return s, nil
}

// receive hands out the answers of a stream, until it ends.
func (r *renewals) receive(s *renewalStream) {
	defer s.cancel()
	for {
		resp, err := s.Recv()
		r.mu.Lock()
		if err == nil && (len(s.waiting) == 0 || s.waiting[0].id != clientv3.LeaseID(resp.ID)) {
			err = errStream
		}
		if err != nil {
			waiting := s.waiting
			s.ended, r.stream = true, nil
			r.mu.Unlock()
			r.fail(waiting, err)
			return
		}
		first := s.waiting[0]
		s.waiting, s.heard = s.waiting[1:], time.Now()
		r.mu.Unlock()
		first.answer <- renewed{ttl: resp.TTL}
	}
}

// wait returns when the goroutines have ended. It is called after the end of their context.
func (r *renewals) wait() {
	r.mu.Lock() // send may be about to start one
	started := r.started
	r.mu.Unlock()
	if started {
		r.tasks.Wait()
	}
}
