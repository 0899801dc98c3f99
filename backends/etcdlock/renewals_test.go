package etcdlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// member is an etcd that answers renewals when the test says so.
type member struct {
	pb.LeaseClient
	streams []*stream
}

// stream is a connection to a member.
type stream struct {
	grpc.ClientStream
	ctx     context.Context
	answers chan int64
}

func (m *member) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	s := &stream{ctx: ctx, answers: make(chan int64)}
	m.streams = append(m.streams, s)
	return s, nil
}

func (s *stream) Send(*pb.LeaseKeepAliveRequest) error { return nil }

func (s *stream) Recv() (*pb.LeaseKeepAliveResponse, error) {
	select {
	case id := <-s.answers:
		return &pb.LeaseKeepAliveResponse{ID: id, TTL: 9}, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// renewing runs test in virtual time, with renewals that go to a member.
func renewing(t *testing.T, test func(t *testing.T, r *renewals, m *member)) {
	synctest.Test(t, func(t *testing.T) {
		open, end := context.WithCancel(context.Background())
		m, r := new(member), new(renewals)
		r.begin(open, m, func() {})
		test(t, r, m)
		end()
		r.wait()
	})
}

// unanswered sends a renewal whose caller gives up after d.
func unanswered(t *testing.T, r *renewals, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if _, err := r.await(ctx, r.send(7)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("expected no answer, seen %v", err)
	}
	synctest.Wait()
}

// A renewal that nobody waits for any longer is answered late. The answer does not count for the next renewal, which
// may get lost.
func TestRenewalsCountForThemselves(t *testing.T) {
	renewing(t, func(t *testing.T, r *renewals, m *member) {
		unanswered(t, r, 500*time.Millisecond)
		second := r.send(7)
		synctest.Wait()
		m.streams[0].answers <- 7
		synctest.Wait()
		select {
		case a := <-second:
			t.Errorf("the answer to an earlier renewal: expected the second one to wait, seen %+v", a)
		default:
		}
		m.streams[0].answers <- 7
		if a := <-second; a.ttl != 9 || a.err != nil {
			t.Errorf("the answer to the second renewal: seen %+v", a)
		}
	})
}

// Leases with short TTLs give up a renewal sooner than a stream counts as broken.
func TestRenewalsLeaveSilentMember(t *testing.T) {
	renewing(t, func(t *testing.T, r *renewals, m *member) {
		unanswered(t, r, 400*time.Millisecond)
		unanswered(t, r, 400*time.Millisecond)
		if m.streams[0].ctx.Err() != nil {
			t.Error("the stream has ended after 800 ms")
		}
		unanswered(t, r, 400*time.Millisecond)
		third := r.send(7)
		synctest.Wait()
		if len(m.streams) != 2 {
			t.Fatalf("after a second of silence: expected a second stream, seen %d", len(m.streams))
		}
		m.streams[1].answers <- 7
		if a := <-third; a.ttl != 9 {
			t.Errorf("over the second stream: seen %+v", a)
		}
	})
}

// A member that is slow, but answers, keeps its stream.
func TestRenewalsStayWithSlowMember(t *testing.T) {
	renewing(t, func(t *testing.T, r *renewals, m *member) {
		first := r.send(1)
		synctest.Wait()
		time.AfterFunc(900*time.Millisecond, func() { m.streams[0].answers <- 1 })
		unanswered(t, r, 1200*time.Millisecond)
		if a := <-first; a.ttl != 9 {
			t.Errorf("seen %+v", a)
		}
		if m.streams[0].ctx.Err() != nil {
			t.Error("the stream has ended 300 ms after an answer")
		}
	})
}
