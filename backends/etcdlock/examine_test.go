package etcdlock_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/etcdtest"
)

func TestOutdatedVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"3.3.27": true, "3.4.30": true, "3.4.31": false, "3.5.0": true, "3.5.12": true, "3.5.12+vendor": true,
		"3.5.13": false, "3.5.21-rc.0": false, "3.6.0": false, "3.7.3": false, "4.0.0": false, "2.3.8": true,
		"unknown": false,
	} {
		if got := etcdlock.Outdated(version); got != want {
			t.Errorf("%s: expected %v, seen %v", version, want, got)
		}
	}
}

// pretends makes a client whose members say that they have another version.
func (s *store) pretends(version string) *clientv3.Client {
	return connect(s.t, clientv3.Config{
		Endpoints: []string{s.member.Addr()},
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, send grpc.UnaryInvoker,
			opts ...grpc.CallOption,
		) error {
			err := send(ctx, method, req, reply, cc, opts...)
			if status, ok := reply.(*pb.StatusResponse); ok {
				status.Version = version
			}
			return err
		})},
	})
}

// buffer is a log that may be read while it is written.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A version that ends leases which are renewed is told when a Client is made, and by Examine. What else keeps etcd from
// being fit for locks is told by Examine.
func TestMembersAreExamined(t *testing.T) {
	t.Parallel()
	s := newStore(t, etcdtest.Start(t))
	log := new(buffer)
	l := etcdlock.New(s.pretends("3.5.12"), etcdlock.Logger(slog.New(slog.NewTextHandler(log, nil))))
	defer l.Close()
	until(t, "the version is told", func() bool { return strings.Contains(log.String(), "3.5.13") })
	s.finds(l, "version", inspect.Warn, "3.5.12", "3.5.13")

	c, err := config.Parse("etcd://" + s.member.Addr() + ",127.0.0.1:1,127.0.0.1:2")
	s.must(err)
	quiet := new(buffer)
	c.Logger = slog.New(slog.NewTextHandler(quiet, nil))
	opened, err := c.Open(t.Context())
	s.must(err)
	defer opened.Close()
	s.finds(examiner(t, opened), "version", inspect.OK, "3.7")
	s.finds(examiner(t, opened), "member", inspect.Fail, "127.0.0.1:2", "refused")
	s.finds(examiner(t, opened), "members", inspect.OK, "1: ")
	unlock(t, lock(t, opened, "k"))
	if strings.Contains(quiet.String(), "member of etcd") {
		t.Errorf("nothing is wrong with the member, and the log has %s", quiet)
	}

	status, err := s.direct.Status(t.Context(), s.member.Addr())
	s.must(err)
	_, err = pb.NewMaintenanceClient(s.direct.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{
		Action: pb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: pb.AlarmType_NOSPACE,
	})
	s.must(err)
	s.finds(examiner(t, opened), "space", inspect.Fail, "NOSPACE", "etcdctl alarm disarm")
}

// finds checks that an examination has a finding whose text and advice contain some words.
func (s *store) finds(x inspect.Examiner, check string, level inspect.Level, words ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	found := x.Examine(ctx)
	if !slices.ContainsFunc(found, func(f inspect.Finding) bool {
		all := f.Text + " " + f.Fix
		return f.Check == check && f.Level == level &&
			!slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(all, w) })
	}) {
		s.t.Errorf("expected %s %s with %q, seen %+v", check, level, words, found)
	}
}

func examiner(t *testing.T, l locker.Locker) inspect.Examiner {
	t.Helper()
	x, ok := locker.As[inspect.Examiner](l)
	if !ok {
		t.Fatal("the Locker is not an Examiner")
	}
	return x
}
