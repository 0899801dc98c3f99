package simnode

import (
	"context"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/golocker/locker/drivers"
)

// Wire is a [Network] with a delay of a tenth of a millisecond each way, into which faults can be injected. The zero
// value has no faults. It ignores contexts, like some clients.
type Wire struct {
	mu   sync.Mutex
	stop chan struct{} // closed by resume; nil while the node answers
	down bool
	lose bool
	deaf bool
}

// Deliver implements [Network].
func (w *Wire) Deliver(_ context.Context, _ []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply,
	error) {
	w.mu.Lock()
	stop, down := w.stop, w.down
	w.mu.Unlock()
	if down {
		return nil, refused()
	}
	if stop != nil {
		<-stop
	}
	time.Sleep(100 * time.Microsecond)
	replies := execute()
	w.mu.Lock()
	lost := w.lose
	w.lose = false
	w.mu.Unlock()
	time.Sleep(100 * time.Microsecond)
	if lost {
		return nil, io.EOF
	}
	return replies, nil
}

// DeliverInTime is Deliver for a driver with the option [Direct]: it returns when ctx ends.
func (w *Wire) DeliverInTime(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) (
	[]drivers.Reply, error,
) {
	return drivers.Await(ctx, func() ([]drivers.Reply, error) { return w.Deliver(ctx, cmds, execute) })
}

// Dead is a [Network] without answers.
func Dead(context.Context, []drivers.Command, func() []drivers.Reply) ([]drivers.Reply, error) {
	return nil, refused()
}

func refused() error {
	return drivers.NotSent(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
}

// Hang holds requests until resume is called. They are then executed, even if nobody waits for them.
func (w *Wire) Hang() (resume func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	stop := make(chan struct{})
	w.stop = stop
	return func() {
		w.mu.Lock()
		w.stop = nil
		w.mu.Unlock()
		close(stop)
	}
}

// Fail refuses requests until mend is called.
func (w *Wire) Fail() (mend func()) {
	w.set(&w.down, true)
	return func() { w.set(&w.down, false) }
}

// LoseReply executes the next batch and loses the answer.
func (w *Wire) LoseReply() { w.set(&w.lose, true) }

// Messages is for [Node.Deliver]: messages arrive unless Deafen was called.
func (w *Wire) Messages(string, string) (late time.Duration, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return 0, w.deaf
}

// Deafen drops all messages until restore is called.
func (w *Wire) Deafen() (restore func()) {
	w.set(&w.deaf, true)
	return func() { w.set(&w.deaf, false) }
}

func (w *Wire) set(fault *bool, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*fault = on
}
