package pipeline

import (
	"bytes"
	"context"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/virtual"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const timeout = 5 * time.Second

// answers is how a driver answers a batch.
type answers func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error)

// fake is a driver whose answers a test decides. It records what it was sent.
type fake struct {
	direct bool

	mu      sync.Mutex
	answer  answers
	batches [][]drivers.Command
}

func (f *fake) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	f.mu.Lock()
	f.batches = append(f.batches, append([]drivers.Command(nil), cmds...))
	answer := f.answer
	f.mu.Unlock()
	return answer(ctx, cmds)
}

func (f *fake) Direct() bool { return f.direct }
func (f *fake) Close() error { return nil }

func (f *fake) will(answer answers) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// sizes returns those of the batches sent so far.
func (f *fake) sizes() (sizes []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.batches {
		sizes = append(sizes, len(b))
	}
	return sizes
}

// trips returns how many batches were sent so far.
func (f *fake) trips() int { return len(f.sizes()) }

// sent returns how many commands of that name were sent so far.
func (f *fake) sent(name string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.batches {
		for _, cmd := range b {
			if cmd[0] == name {
				n++
			}
		}
	}
	return n
}

func all(r drivers.Reply) answers {
	return func(_ context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		replies := make([]drivers.Reply, len(cmds))
		for i := range replies {
			replies[i] = r
		}
		return replies, nil
	}
}

var ok = all(int64(1))

func fails(err error) answers {
	return func(context.Context, []drivers.Command) ([]drivers.Reply, error) { return nil, err }
}

// until holds every batch back until the channel is closed, whatever its context says, and then goes on with next.
func until(ch <-chan struct{}, next answers) answers {
	return func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		<-ch
		return next(ctx, cmds)
	}
}

// slowly answers as next does, after d.
func slowly(d time.Duration, next answers) answers {
	return func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		time.Sleep(d)
		return next(ctx, cmds)
	}
}

// hangs answers nothing until the context ends.
func hangs(ctx context.Context, _ []drivers.Command) ([]drivers.Reply, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

var (
	// refused is what a driver says of a server that is down.
	refused = drivers.NotSent(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})

	unknown = drivers.ServerError("NOSCRIPT No matching script. Please use EVAL.")

	get     = script.Command{Words: drivers.Command{"GET", "k"}}
	named   = script.Command{Words: drivers.Command{"EVALSHA", "digest", "0"}, Source: "source"}
	release = script.Command{Words: drivers.Command{"DEL", "k"}, IsRelease: true}
)

// bubble runs f in virtual time with a pipeline over a fake that is direct or not.
func bubble(t *testing.T, direct bool, f func(t *testing.T, d *fake, p *Pipeline)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		d := &fake{answer: ok, direct: direct}
		p := New(d, timeout)
		f(t, d, p)
		if !p.Drain(t.Context()) {
			t.Error("it is not drained")
		}
		p.Close()
	})
}

func do(ctx context.Context, p *Pipeline, cmd script.Command) error {
	_, err := p.Do(ctx, cmd, timeout, nil)
	return err
}

// goroutines counts those of the caller's bubble. What the tests before have left behind ends when it likes.
func goroutines() int {
	text := make([]byte, 1<<20)
	text = text[:runtime.Stack(text, true)] // the caller comes first: "goroutine 7 [running, synctest bubble 5]:"
	own, _, _ := bytes.Cut(text, []byte("]:\n"))
	_, bubble, ok := bytes.Cut(own, []byte(", "))
	if !ok {
		panic("not in a bubble: " + string(own))
	}
	return bytes.Count(text, append(bubble, "]:\n"...))
}
