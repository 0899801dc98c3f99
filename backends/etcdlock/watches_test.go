package etcdlock

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/virtual"
)

// teller is an etcd that tells what the test says.
type teller struct {
	pb.WatchClient

	mu      sync.Mutex
	streams []*told
}

// told is a connection to a teller.
type told struct {
	grpc.ClientStream
	ctx   context.Context
	tells chan *pb.WatchResponse // closed when the connection is lost
	ended bool                   // the last call of Recv has returned

	mu       sync.Mutex
	requests []*pb.WatchRequest
}

func (m *teller) Watch(ctx context.Context, _ ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	s := &told{ctx: ctx, tells: make(chan *pb.WatchResponse)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.streams = append(m.streams, s)
	return s, nil
}

func (s *told) Send(q *pb.WatchRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, q)
	return nil
}

// sent returns the requests.
func (s *told) sent() []*pb.WatchRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func (s *told) Recv() (*pb.WatchResponse, error) {
	select {
	case resp, ok := <-s.tells:
		if !ok {
			return nil, io.EOF
		}
		return resp, nil
	case <-s.ctx.Done():
		time.Sleep(time.Millisecond) // a goroutine may end late
		s.ended = true
		return nil, s.ctx.Err()
	}
}

// last returns the last connection.
func (m *teller) last() *told {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.streams[len(m.streams)-1]
}

// opened returns how many connections there have been.
func (m *teller) opened() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.streams)
}

// created returns the last request for a watch.
func (s *told) created() (last *pb.WatchCreateRequest) {
	for _, q := range s.sent() {
		if c := q.GetCreateRequest(); c != nil {
			last = c
		}
	}
	return last
}

func begun(id int64) *pb.WatchResponse { return &pb.WatchResponse{WatchId: id, Created: true} }

// refused is the answer of etcd to a request for a watch, whatever its number.
func refused(reason error) *pb.WatchResponse {
	return &pb.WatchResponse{WatchId: -1, Created: true, Canceled: true, CancelReason: reason.Error()}
}

// event is one in the watch with the number id.
func event(id int64, entry string, kind mvccpb.Event_EventType, version int64, value string) *pb.WatchResponse {
	kv := &mvccpb.KeyValue{Key: []byte(DefaultPrefix + entry), Version: version, Value: []byte(value)}
	return &pb.WatchResponse{WatchId: id, Events: []*mvccpb.Event{{Type: kind, Kv: kv}}}
}

func deleted(id int64, entry string) *pb.WatchResponse { return event(id, entry, mvccpb.DELETE, 0, "") }

// only returns the number of the only watch of changes.
func (b *store) only() (id int64) {
	b.changes.mu.Lock()
	defer b.changes.mu.Unlock()
	for id = range b.changes.watched {
	}
	return id
}

// listening returns a backend whose watches are those of a teller.
func listening() (*store, *teller) {
	b, m := &store{prefix: DefaultPrefix}, new(teller)
	b.open, b.stop = context.WithCancel(context.Background())
	b.losses.begin(b.open, m)
	b.changes.begin(b.open, m)
	return b, m
}

// telling runs test in virtual time, with a backend that watches the directory of k. tell sends a message, and returns
// how often changed has been called because of it.
func telling(t *testing.T, test func(t *testing.T, b *store, m *teller, tell func(*pb.WatchResponse) int)) {
	virtual.Test(t, func(t *testing.T) {
		b, m := listening()
		defer b.Close()
		calls := 0
		stop, err := b.Watch("k", func() { calls++ })
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		test(t, b, m, func(resp *pb.WatchResponse) int {
			before := calls
			m.last().tells <- resp
			synctest.Wait()
			return calls - before
		})
		id := b.only()
		stop()
		synctest.Wait()
		sent := m.last().sent()
		if last := sent[len(sent)-1]; last.GetCancelRequest().GetWatchId() != id {
			t.Errorf("after stop: expected a request to end watch %d, seen %v", id, last)
		}
		if err := b.Close(); err != nil || !m.last().ended {
			t.Errorf("Close: expected it to wait for the goroutines, seen it return before (%v)", err)
		}
		if _, err := b.Watch("k", func() {}); !errors.Is(err, locker.ErrClosed) {
			t.Errorf("Watch of a backend that was closed: expected ErrClosed, seen %v", err)
		}
	})
}

// What may have changed the owner is told of, once. An entry that gets another lease has the same owner.
func TestWatchTellsOfChanges(t *testing.T) {
	telling(t, func(t *testing.T, b *store, m *teller, tell func(*pb.WatchResponse) int) {
		id := b.only()
		if c := m.last().created(); string(c.Key) != "lock:k/" || string(c.RangeEnd) != "lock:k0" || c.StartRevision != 0 {
			t.Errorf("expected a watch of the directory from now on, seen %v", c)
		}
		for _, told := range []struct {
			what string
			resp *pb.WatchResponse
			want int
		}{
			{"the watch has begun", begun(id), 1},
			{"an entry was created", event(id, "k/t", mvccpb.PUT, 1, "label"), 1},
			{"an entry has another lease", event(id, "k/t", mvccpb.PUT, 2, "label"), 0},
			{"a lock is kept", event(id, "k/t", mvccpb.PUT, 3, keptValue), 1},
			{"an entry was deleted", deleted(id, "k/t"), 1},
			{"an entry of another lock was deleted", deleted(id, "l/t"), 0},
			{"progress", &pb.WatchResponse{WatchId: id}, 0},
		} {
			if n := tell(told.resp); n != told.want {
				t.Errorf("%s: expected %d calls, seen %d", told.what, told.want, n)
			}
		}
	})
}

// After a lost connection, a compaction and a refusal the watch begins anew. What was missed is told of then.
func TestWatchBeginsAnew(t *testing.T) {
	telling(t, func(t *testing.T, b *store, m *teller, tell func(*pb.WatchResponse) int) {
		begins := func(when string, streams int) {
			t.Helper()
			synctest.Wait()
			if m.opened() != streams {
				t.Fatalf("%s: expected stream %d, seen %d", when, streams, m.opened())
			}
			if n := tell(begun(b.only())); n != 1 {
				t.Errorf("%s: expected a call when the watch has begun, seen %d", when, n)
			}
			if n := tell(deleted(b.only(), "k/t")); n != 1 {
				t.Errorf("%s: expected a call after a change, seen %d", when, n)
			}
		}
		begins("at first", 1)
		close(m.last().tells)
		time.Sleep(watchAgain)
		begins("after a lost connection", 2)
		ended := m.last().created().WatchId
		tell(&pb.WatchResponse{WatchId: ended, Canceled: true, CompactRevision: 9})
		if c := m.last().created(); c.WatchId == ended || c.StartRevision != 0 {
			t.Errorf("after a compaction: expected another watch from now on, seen %v", c)
		}
		begins("after a compaction", 2)
		close(m.last().tells)
		time.Sleep(watchAgain)
		synctest.Wait()
		tell(refused(rpctypes.ErrGRPCInvalidAuthToken))
		time.Sleep(watchRefused)
		begins("after the token has expired", 4)
	})
}

// A watch for which the user has no permission is asked for again from time to time. The others go on.
func TestRefusedWatchDisturbsNoOther(t *testing.T) {
	telling(t, func(t *testing.T, b *store, m *teller, tell func(*pb.WatchResponse) int) {
		id, others := b.only(), 0
		stop, err := b.Watch("other", func() { others++ })
		if err != nil {
			t.Fatal(err)
		}
		tell(begun(id))
		for n := range 2 {
			tell(refused(rpctypes.ErrGRPCPermissionDenied))
			if calls := tell(deleted(id, "k/t")); calls != 1 || m.opened() != 1 {
				t.Fatalf("after refusal %d of another watch: expected 1 call and 1 stream, seen %d and %d",
					n+1, calls, m.opened())
			}
			asked := len(m.last().sent())
			time.Sleep(watchRefused)
			synctest.Wait()
			if c := m.last().created(); len(m.last().sent()) == asked || string(c.Key) != "lock:other/" {
				t.Fatalf("after refusal %d: expected another request for the watch, seen %v", n+1, c)
			}
		}
		tell(begun(m.last().created().WatchId))
		if others != 1 {
			t.Errorf("the watch has begun at last: expected 1 call, seen %d", others)
		}
		stop()
		stop, err = b.Watch("third", func() {})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		tell(refused(rpctypes.ErrGRPCPermissionDenied))
		stop()
		synctest.Wait()
		asked := len(m.last().sent())
		time.Sleep(2 * watchRefused)
		synctest.Wait()
		if n := len(m.last().sent()) - asked; n != 0 {
			t.Errorf("a watch that was refused, and removed: expected no request for it, seen %d", n)
		}
	})
}

// losing runs test in virtual time, with a backend that watches the entries one/t and two/t, in this order. lost counts
// the losses that were told of.
func losing(t *testing.T, test func(t *testing.T, m *teller, tell func(...*pb.WatchResponse), lost map[string]int)) {
	virtual.Test(t, func(t *testing.T) {
		b, m := listening()
		defer b.Close()
		lost := map[string]int{}
		for _, key := range []string{"one", "two"} {
			b.NotifyLoss(backend.Request{Key: key, Token: "t", Fence: 7}, func(error) { lost[key]++ })
			time.Sleep(watchAfter)
			synctest.Wait()
		}
		test(t, m, func(resps ...*pb.WatchResponse) {
			for _, resp := range resps {
				m.last().tells <- resp
				synctest.Wait()
			}
		}, lost)
	})
}

// A message with the number of one lock and the key of another tells nobody of a loss.
func TestLossIsThatOfTheLock(t *testing.T) {
	losing(t, func(t *testing.T, m *teller, tell func(...*pb.WatchResponse), lost map[string]int) {
		tell(begun(1), begun(2), deleted(1, "two/t"))
		if len(lost) != 0 || m.opened() != 1 {
			t.Errorf("the wrong number: expected no loss and 1 stream, seen %v and %d", lost, m.opened())
		}
		tell(deleted(1, "one/t"))
		if lost["one"] != 1 || lost["two"] != 0 {
			t.Errorf("the loss of the first lock: expected that nobody else is told, seen %v", lost)
		}
	})
}

// "etcd grpc-proxy" gives watches numbers of its own, from 0 on, and answers in any order.
func TestLossesBehindProxy(t *testing.T) {
	losing(t, func(t *testing.T, m *teller, tell func(...*pb.WatchResponse), lost map[string]int) {
		tell(begun(0))
		time.Sleep(watchRefused - time.Millisecond)
		synctest.Wait()
		if err := m.last().ctx.Err(); err == nil || m.opened() != 1 {
			t.Errorf("a number nobody asked for: expected that the stream ends, and a pause, seen %v and %d streams",
				err, m.opened())
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if m.opened() != 2 || len(m.last().sent()) != 2 {
			t.Fatalf("after the pause: expected a stream with two requests, seen %d streams", m.opened())
		}
		first := m.last().sent()[0].GetCreateRequest()
		other := map[string]string{"lock:one/t": "two/t", "lock:two/t": "one/t"}[string(first.Key)]
		tell(begun(first.WatchId), deleted(first.WatchId, other), begun(0))
		if err := m.last().ctx.Err(); len(lost) != 0 || err == nil {
			t.Errorf("expected no loss and that the stream ends, seen %v and %v", lost, err)
		}
	})
}

// All watches share a stream. It needs two goroutines, which belong to the backend, and which synctest misses if they
// stay.
func TestWatchesShareAStream(t *testing.T) {
	telling(t, func(t *testing.T, b *store, m *teller, tell func(*pb.WatchResponse) int) {
		id, others := b.only(), 0
		var stops []func()
		for range 100 {
			stop, err := b.Watch("other", func() { others++ })
			if err != nil {
				t.Fatal(err)
			}
			stops = append(stops, stop)
		}
		synctest.Wait()
		expect := func(what string, resp *pb.WatchResponse, wanted, wantedOthers int) {
			t.Helper()
			before := others
			if n := tell(resp); n != wanted || others-before != wantedOthers {
				t.Errorf("%s: expected %d calls of k and %d of the others, seen %d and %d",
					what, wanted, wantedOthers, n, others-before)
			}
		}
		expect("the watch of k has begun", begun(id), 1, 0)
		expect("an entry of k was deleted", deleted(id, "k/t"), 1, 0)
		for _, q := range m.last().sent()[1:] {
			other := q.GetCreateRequest().WatchId
			expect("a watch of the other lock has begun", begun(other), 0, 1)
			expect("an entry of the other lock was deleted", deleted(other, "other/t"), 0, 1)
		}
		for _, stop := range stops {
			stop()
		}
		synctest.Wait()
		if m.opened() != 1 || len(m.last().sent()) != 201 || len(b.changes.watched) != 1 {
			t.Errorf("expected one stream with 201 requests, and one watch, seen %d, %d, %d",
				m.opened(), len(m.last().sent()), len(b.changes.watched))
		}
	})
}

// entries is an etcd that counts the entries of a directory.
type entries struct {
	clientv3.KV
	count, asked int64
}

func (e *entries) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	e.asked++
	return &clientv3.GetResponse{Count: e.count}, nil
}

// The directory is watched from NotifyWanted until stop, and its entries are counted until there is one that waits.
func TestNotifyWantedCountsUntilSomebodyWaits(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		b, m := listening()
		defer b.Close()
		kv := &entries{count: 1}
		b.kv, b.timeout = kv, time.Minute
		told := 0
		stop := b.NotifyWanted(backend.Request{Key: "k", Token: "t"}, func() { told++ })
		synctest.Wait()
		for _, step := range []struct {
			what                string
			resp                *pb.WatchResponse
			count, told, counts int64
		}{
			{"nobody waits", begun(1), 1, 0, 1},
			{"a waiter has left again", event(1, "k/w", mvccpb.PUT, 1, ""), 1, 0, 2},
			{"one waits", event(1, "k/w", mvccpb.PUT, 1, ""), 2, 1, 3},
			{"that is known", event(1, "k/v", mvccpb.PUT, 1, ""), 3, 1, 3},
		} {
			kv.count = step.count
			m.last().tells <- step.resp
			synctest.Wait()
			if int64(told) != step.told || kv.asked != step.counts {
				t.Errorf("%s: told %d times after %d counts, want %d and %d", step.what, told, kv.asked, step.told, step.counts)
			}
		}
		before := len(m.last().sent())
		stop()
		synctest.Wait()
		if sent := m.last().sent()[before:]; len(sent) != 1 || sent[0].GetCancelRequest() == nil {
			t.Errorf("after stop: expected that the watch ends, seen %v", sent)
		}
	})
}
