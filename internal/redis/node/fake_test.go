package node

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/clientwait"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a driver whose answers a test decides. It records what it was sent.
type fake struct {
	mu      sync.Mutex
	answer  func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error)
	batches [][]drivers.Command
	closed  bool
	after   int // batches sent after it was closed
}

func (f *fake) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	f.mu.Lock()
	f.batches = append(f.batches, append([]drivers.Command(nil), cmds...))
	if f.closed {
		f.after++
	}
	answer := f.answer
	f.mu.Unlock()
	replies, err := answer(ctx, cmds)
	for i := range replies {
		if i < len(cmds) {
			replies[i] = fitting(cmds[i], replies[i])
		}
	}
	return replies, err
}

// fitting returns the reply to cmd. If cmd is joined, it says the same of all its parts, or, if it is an array of a
// script, that the case is not the usual one.
func fitting(cmd drivers.Command, r drivers.Reply) drivers.Reply {
	steps := wire.Steps(cmd)
	if len(steps) == 0 || !steps[0].Joined {
		return r
	}
	switch r.(type) {
	case []drivers.Reply:
		r = int64(0)
	case int64:
	default:
		return r
	}
	if len(steps) == 1 {
		return r
	}
	return slices.Repeat([]drivers.Reply{r}, len(steps))
}

func (f *fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

func (f *fake) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

func (f *fake) will(answer func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// sent returns the commands of a kind sent so far, a joined one as often as it has parts of that kind. The kind acquire
// has all attempts, and the kind release all releases.
func (f *fake) sent(kind string) (cmds []drivers.Command) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, batch := range f.batches {
		for _, cmd := range batch {
			for _, step := range wire.Steps(cmd) {
				if step.Script == kind || kind == "acquire" && step.Script == "enqueue" ||
					kind == "release" && step.Script == "handover" {
					cmds = append(cmds, cmd)
				}
			}
		}
	}
	return cmds
}

// tombstone returns for how many ms a release leaves one, "0" for none.
func tombstone(release drivers.Command) string {
	if wire.Steps(release)[0].Joined {
		return "0"
	}
	life, _, _ := strings.Cut(release[len(release)-1], ":")
	return life
}

// trips returns how many batches were sent so far.
func (f *fake) trips() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.batches)
}

// forgetAll empties the record.
func (f *fake) forgetAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches = nil
}

// answers is what a fake server does with a batch.
type answers = func(context.Context, []drivers.Command) ([]drivers.Reply, error)

// ok answers as a server does on which everything succeeds.
func ok(_ context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
	replies := make([]drivers.Reply, len(cmds))
	for i, cmd := range cmds {
		replies[i] = int64(1)
		if kindOf(cmd) == "acquire" {
			replies[i] = granted
		}
	}
	return replies, nil
}

var (
	granted = int64(7)
	held    = []drivers.Reply{int64(0), int64(500), int64(-1), int64(1), int64(0), ""}
)

// all answers every command with r.
func all(r drivers.Reply) answers {
	return func(_ context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		replies := make([]drivers.Reply, len(cmds))
		for i := range replies {
			replies[i] = r
		}
		return replies, nil
	}
}

// fails answers every batch with err.
func fails(err error) answers {
	return func(context.Context, []drivers.Command) ([]drivers.Reply, error) { return nil, err }
}

// slowly answers as next does, after d, unless the context ends before.
func slowly(d time.Duration, next answers) answers {
	return func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		select {
		case <-time.After(d):
			return next(ctx, cmds)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// refused is what a driver says of a server that is down.
var refused = drivers.NotSent(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})

// until holds every batch back until the channel is closed, whatever its context says, and then goes on with next.
func until(ch <-chan struct{}, next answers) answers {
	return func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		<-ch
		return next(ctx, cmds)
	}
}

// hangs answers nothing until the context ends.
func hangs(ctx context.Context, _ []drivers.Command) ([]drivers.Reply, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

const timeout = 5 * time.Second

func bubble(t *testing.T, f func(t *testing.T, d *fake, n *Node)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		d := &fake{answer: ok}
		n := New(d, Options{Name: "n1", Prefix: "p:", Timeout: timeout})
		f(t, d, n)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if !d.closed {
			t.Error("the driver was not closed")
		}
	})
}

func request(token string) backend.Request {
	return backend.Request{Key: "k", Token: token, TTL: 10 * time.Second}
}

// waiting returns the Wait of a call of Queue.
func waiting(ctx context.Context) backend.Wait {
	wait, _ := clientwait.New(ctx, locker.Patience(0))
	return wait
}
