package conformance

import (
	"testing"

	"github.com/golocker/locker"
)

// role adds an optional interface to a toy's Backend.
type role func(b *toyBackend) locker.Backend

func plain(b *toyBackend) locker.Backend    { return b }
func queuer(b *toyBackend) locker.Backend   { return toyQueuer{b} }
func notifier(b *toyBackend) locker.Backend { return toyNotifier{b} }

// flaw is a mistake of a store, a backend or a locker. Most of them occurred in real libraries.
type flaw struct {
	name    string
	fails   []string // the properties that notice
	broad   bool     // other properties may notice the flaw as well, because it breaks everything
	role    role     // nil: plain
	store   func(s *toy)
	wrapper locker.Middleware // of Clients
	change  func(h *Harness)
}

// harness returns a harness with all its functions and the flaw.
func harness(f flaw) Harness {
	if f.role == nil {
		f.role = plain
	}
	_, queues := f.role(&toyBackend{}).(locker.Queuer)
	h := Harness{
		Bubble: notCalled,
		FIFO:   queues,
		Labels: true, Verifies: true, Steps: true,
		Store: func(testing.TB) Store {
			s := newToy()
			if f.store != nil {
				f.store(s)
			}
			open := func() locker.Backend { return f.role(&toyBackend{toy: s}) }
			store := Store{
				Open:      open,
				Delete:    s.delete,
				Foreign:   s.foreign,
				Hang:      s.hang,
				Down:      s.fail,
				LoseReply: func() { s.with(func() { s.lose = true }) },
				LoseMessages: func() func() {
					s.with(func() { s.deaf = true })
					return func() { s.with(func() { s.deaf = false }) }
				},
				Restart: s.restart,
				Left:    s.left,
			}
			if f.wrapper != nil {
				store.Client = func() locker.Locker { return f.wrapper(locker.NewClient(open())) }
			}
			return store
		},
	}
	if f.wrapper != nil {
		_, h.Steps = f.wrapper(nil).(locker.ManyLocker)
	}
	if f.change != nil {
		f.change(&h)
	}
	return h
}

// alone lists the properties that alone notice some flaw.
func alone(flaws []flaw) (names []string) {
	for _, f := range flaws {
		if len(f.fails) == 1 && !f.broad {
			names = append(names, f.fails[0])
		}
	}
	return names
}
