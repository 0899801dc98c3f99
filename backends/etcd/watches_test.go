package etcd

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
)

// teller is an etcd that tells what the test says.
type teller struct {
	pb.WatchClient
	streams []*told
}

// told is a connection to a teller.
type told struct {
	grpc.ClientStream
	ctx      context.Context
	requests []*pb.WatchRequest
	tells    chan *pb.WatchResponse // closed when the connection is lost
	ended    bool                   // the last call of Recv has returned
}

func (m *teller) Watch(ctx context.Context, _ ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	s := &told{ctx: ctx, tells: make(chan *pb.WatchResponse)}
	m.streams = append(m.streams, s)
	return s, nil
}

func (s *told) Send(q *pb.WatchRequest) error {
	s.requests = append(s.requests, q)
	return nil
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
func (m *teller) last() *told { return m.streams[len(m.streams)-1] }

// created returns the last request for a watch.
func (s *told) created() (last *pb.WatchCreateRequest) {
	for _, q := range s.requests {
		if c := q.GetCreateRequest(); c != nil {
			last = c
		}
	}
	return last
}

func event(kind mvccpb.Event_EventType, version int64, value string) *pb.WatchResponse {
	kv := &mvccpb.KeyValue{Version: version, Value: []byte(value)}
	return &pb.WatchResponse{Events: []*mvccpb.Event{{Type: kind, Kv: kv}}}
}

// only returns the number of the only watch of changes.
func (b *Backend) only() (id int64) {
	b.changes.mu.Lock()
	defer b.changes.mu.Unlock()
	for id = range b.changes.watched {
	}
	return id
}

// telling runs test in virtual time, with a Backend whose changes are those of a teller. tell sends a message about the
// only watch, and returns how often changed has been called because of it.
func telling(t *testing.T, test func(t *testing.T, b *Backend, m *teller, tell func(*pb.WatchResponse) int)) {
	virtual.Test(t, func(t *testing.T) {
		b, m, calls := &Backend{prefix: DefaultPrefix}, new(teller), 0
		b.open, b.stop = context.WithCancel(context.Background())
		b.changes.begin(b.open, m)
		b.cleanup.begin(b.open)
		defer b.Close()
		stop, err := b.Watch("k", func() { calls++ })
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		test(t, b, m, func(resp *pb.WatchResponse) int {
			resp.WatchId = b.only()
			before := calls
			m.last().tells <- resp
			synctest.Wait()
			return calls - before
		})
		id := b.only()
		stop()
		synctest.Wait()
		sent := m.last().requests
		if last := sent[len(sent)-1]; last.GetCancelRequest().GetWatchId() != id {
			t.Errorf("after stop: expected a request to end watch %d, seen %v", id, last)
		}
		if err := b.Close(); err != nil || !m.last().ended {
			t.Errorf("Close: expected it to wait for the goroutines, seen it return before (%v)", err)
		}
		if _, err := b.Watch("k", func() {}); !errors.Is(err, locker.ErrClosed) {
			t.Errorf("Watch of a Backend that was closed: expected ErrClosed, seen %v", err)
		}
	})
}

// What may have changed the owner is told of, once. An entry that gets another lease has the same owner.
func TestWatchTellsOfChanges(t *testing.T) {
	telling(t, func(t *testing.T, _ *Backend, m *teller, tell func(*pb.WatchResponse) int) {
		if c := m.last().created(); string(c.Key) != "lock:k/" || string(c.RangeEnd) != "lock:k0" || c.StartRevision != 0 {
			t.Errorf("expected a watch of the directory from now on, seen %v", c)
		}
		for _, told := range []struct {
			what string
			resp *pb.WatchResponse
			want int
		}{
			{"the watch has begun", &pb.WatchResponse{Created: true}, 1},
			{"an entry was created", event(mvccpb.PUT, 1, "label"), 1},
			{"an entry has another lease", event(mvccpb.PUT, 2, "label"), 0},
			{"a lock is kept", event(mvccpb.PUT, 3, keptValue), 1},
			{"an entry was deleted", event(mvccpb.DELETE, 0, ""), 1},
			{"progress", &pb.WatchResponse{}, 0},
		} {
			if n := tell(told.resp); n != told.want {
				t.Errorf("%s: expected %d calls, seen %d", told.what, told.want, n)
			}
		}
	})
}

// After a lost connection, a compaction and a refusal the watch begins anew. What was missed is told of then.
func TestWatchBeginsAnew(t *testing.T) {
	telling(t, func(t *testing.T, _ *Backend, m *teller, tell func(*pb.WatchResponse) int) {
		begins := func(when string, streams int) {
			t.Helper()
			synctest.Wait()
			if len(m.streams) != streams {
				t.Fatalf("%s: expected stream %d, seen %d", when, streams, len(m.streams))
			}
			if n := tell(&pb.WatchResponse{Created: true}); n != 1 {
				t.Errorf("%s: expected a call when the watch has begun, seen %d", when, n)
			}
			if n := tell(event(mvccpb.DELETE, 0, "")); n != 1 {
				t.Errorf("%s: expected a call after a change, seen %d", when, n)
			}
		}
		begins("at first", 1)
		close(m.last().tells)
		time.Sleep(watchAgain)
		begins("after a lost connection", 2)
		ended := m.last().created().WatchId
		tell(&pb.WatchResponse{Canceled: true, CompactRevision: 9})
		if c := m.last().created(); c.WatchId == ended || c.StartRevision != 0 {
			t.Errorf("after a compaction: expected another watch from now on, seen %v", c)
		}
		begins("after a compaction", 2)
		tell(&pb.WatchResponse{Created: true, Canceled: true})
		time.Sleep(watchRefused)
		begins("after a refusal", 3)
	})
}

// All watches share a stream. It needs two goroutines, which belong to the Backend, and which synctest misses if they
// stay.
func TestWatchesShareAStream(t *testing.T) {
	telling(t, func(t *testing.T, b *Backend, m *teller, tell func(*pb.WatchResponse) int) {
		var stops []func()
		for range 100 {
			stop, err := b.Watch("other", func() { t.Error("told of another lock") })
			if err != nil {
				t.Fatal(err)
			}
			stops = append(stops, stop)
		}
		for _, stop := range stops {
			stop()
		}
		synctest.Wait()
		if len(m.streams) != 1 || len(m.last().requests) != 201 || len(b.changes.watched) != 1 {
			t.Errorf("expected one stream with 201 requests, and one watch, seen %d, %d, %d",
				len(m.streams), len(m.last().requests), len(b.changes.watched))
		}
	})
}
