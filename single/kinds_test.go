package single_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/rwlock"
)

func (w *groupWorld) takes(l locker.Locker, opts ...locker.Option) locker.Lease {
	lease, err := l.Lock(w.Context(), "k", opts...)
	if err != nil {
		panic(err) // Fatal would end one goroutine only
	}
	return lease
}

// waits calls Lock in the background. It returns when the call waits.
func (w *groupWorld) waits(l locker.Locker, opts ...locker.Option) <-chan locker.Lease {
	got := make(chan locker.Lease, 1)
	go func() { got <- w.takes(l, opts...) }()
	time.Sleep(time.Second)
	return got
}

// A command for each reader or writer of a free key, one for its return, and one every two seconds while a caller
// waits.
func TestCommandsForReadersAndWriters(t *testing.T) {
	inGroupWorld(t, func(w *groupWorld) {
		rw, other := rwlock.New(w.client(nil)), rwlock.New(w.client(nil))
		views := map[string]locker.Locker{"shared": rw.Shared(), "upgradeable": rw.Upgradeable(), "exclusive": rw.Exclusive()}
		for range 2 { // the node does not know the scripts the first time
			for name, l := range views {
				w.commands.Store(0)
				w.unlock(w.takes(l))
				if got := w.commands.Load(); got > 2 {
					w.Errorf("%d commands for a lock that is %s", got, name)
				}
			}
		}
		held := w.takes(rw.Exclusive(), locker.TTL(time.Hour))
		served := w.waits(other.Shared())
		w.commands.Store(0)
		time.Sleep(100 * time.Second)
		// A request every 1.5 to 2.5 s, and a probe of the subscription every 4 s.
		if got := w.commands.Load(); got < 100/4 || got > 67+27 {
			w.Errorf("%d commands of a caller that waits for 100 s", got)
		}
		w.unlock(held)
		w.unlock(<-served)
		w.empty()
	})
}

// Readers of many processes that wait for a writer are served at once when it unlocks, and when it becomes a reader,
// although a step looks at 64 of them only.
func TestReadersThatWaitAreServedAtOnce(t *testing.T) {
	for name, end := range map[string]func(w *groupWorld, l locker.Lease){
		"it unlocks": func(w *groupWorld, l locker.Lease) { w.unlock(l) },
		"it becomes a reader": func(w *groupWorld, l locker.Lease) {
			reads, err := rwlock.Downgrade(w.Context(), l)
			if err != nil {
				w.Fatal(err)
			}
			time.AfterFunc(2*time.Second, func() { w.unlock(reads) })
		},
	} {
		inGroupWorld(t, func(w *groupWorld) {
			const n = 200
			writer := w.takes(rwlock.New(w.client(nil)).Exclusive(), locker.TTL(time.Hour))
			var served sync.WaitGroup
			for range n {
				rw := rwlock.New(w.client(nil))
				served.Go(func() {
					l := w.takes(rw.Shared(), locker.TTL(time.Hour))
					time.Sleep(time.Second)
					w.unlock(l)
				})
			}
			time.Sleep(time.Second)
			start := time.Now()
			end(w, writer)
			time.Sleep(500 * time.Millisecond)
			if _, err := rwlock.New(w.client(nil)).Exclusive().TryLock(w.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
				w.Errorf("%s: TryLock of a writer beside %d readers: %v", name, n, err)
			}
			served.Wait()
			if took := time.Since(start) - time.Second; took > 100*time.Millisecond {
				w.Errorf("%s: the last of %d was served after %v", name, n, took)
			}
			time.Sleep(2 * time.Second)
			w.empty()
		})
	}
}

// A writer that is stopped while it waits keeps readers out for two seconds if it is served, and otherwise as long as
// its heartbeats count.
func TestStoppedWriterThatWaits(t *testing.T) {
	for name, tt := range map[string]struct {
		served bool
		most   time.Duration
	}{
		"it is served":     {true, 2100 * time.Millisecond},
		"it is not served": {false, 6700 * time.Millisecond},
	} {
		inGroupWorld(t, func(w *groupWorld) {
			stop := make(chan struct{})
			stopped := func(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) (
				[]drivers.Reply, error,
			) {
				select {
				case <-stop:
					<-ctx.Done()
					return nil, ctx.Err()
				default:
					return w.deliver(ctx, cmds, execute)
				}
			}
			reads := w.takes(rwlock.New(w.client(nil)).Shared(), locker.TTL(time.Hour))
			ctx, die := context.WithCancel(w.Context())
			var dead sync.WaitGroup
			frozen := rwlock.New(w.client(stopped)).Exclusive()
			dead.Go(func() {
				if _, err := frozen.Lock(ctx, "k", locker.TTL(time.Minute)); err == nil {
					w.Error("who is stopped is granted a lock")
				}
			})
			time.Sleep(10 * time.Second)
			close(stop)
			synctest.Wait()
			start := time.Now()
			if tt.served {
				w.unlock(reads)
			}
			next := w.takes(rwlock.New(w.client(nil)).Shared())
			if took := time.Since(start); took > tt.most {
				w.Errorf("%s: others wait for %v", name, took)
			}
			w.unlock(next)
			if !tt.served {
				w.unlock(reads)
			}
			die()
			dead.Wait()
			time.Sleep(3 * time.Minute) // what is repeated for it ends
		})
	}
}

// An upgrade that is not answered is undone, also if it is executed late, and leaves what its caller had. A downgrade
// that is not answered is repeated by the renewals.
func TestUpgradesAndDowngradesWithoutAnAnswer(t *testing.T) {
	inGroupWorld(t, func(w *groupWorld) {
		var lose, late atomic.Bool
		faulty := func(ctx context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
			switch {
			case lose.Swap(false):
				_, _ = w.deliver(ctx, cmds, execute)
				return nil, io.EOF
			case late.Swap(false):
				time.AfterFunc(30*time.Second, func() { execute() })
				return nil, io.EOF
			}
			return w.deliver(ctx, cmds, execute)
		}
		rw, other := rwlock.New(w.client(faulty)), rwlock.New(w.client(nil))
		w.unlock(w.takes(rw.Exclusive()))
		held := w.takes(rw.Upgradeable(), locker.TTL(time.Hour))
		for name, fault := range map[string]*atomic.Bool{"lost": &lose, "late": &late} {
			fault.Store(true)
			if _, err := rwlock.Upgrade(w.Context(), held); !errors.Is(err, locker.ErrUnavailable) {
				w.Errorf("%s: %v", name, err)
			}
			time.Sleep(40 * time.Second)
			w.unlock(w.takes(other.Shared()))
		}
		writes, err := rwlock.Upgrade(w.Context(), held)
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(writes)
		w.empty()
	})
}

// What is evicted of a key loses all of its readers, or its writer, and none of them goes on beside another.
func TestReadersOfAKeyThatIsEvicted(t *testing.T) {
	inGroupWorld(t, func(w *groupWorld) {
		l := w.client(nil)
		rw := rwlock.New(l)
		group := rw.Locks("k")[0]
		for _, lost := range []string{"lock:" + group, "lock:" + group + ":lockentries:t"} {
			reads, up := w.takes(rw.Shared()), w.takes(rw.Upgradeable())
			w.node.Delete(lost)
			writes := w.takes(rw.Exclusive())
			for _, held := range []locker.Lease{reads, up} {
				if err := held.Extend(w.Context()); !errors.Is(err, locker.ErrLost) {
					w.Errorf("without %s: %v", lost, err)
				}
			}
			w.unlock(writes)
		}
		w.empty()
	})
}

// An operator sees all holders of a key, and who waits, in a list as well, and names the holder that is meant.
func TestOperatorsSeeReadersAndWriters(t *testing.T) {
	inGroupWorld(t, func(w *groupWorld) {
		l := w.client(nil)
		rw := rwlock.New(l)
		group := rw.Locks("k")[0]
		first := w.takes(rw.Shared(), locker.TTL(time.Minute), locker.Label("first"))
		second := w.takes(rw.Upgradeable(), locker.TTL(time.Hour), locker.Label("second"))
		writer := w.waits(rw.Exclusive())
		var seen int
		for listed, err := range l.List(w.Context(), "") {
			if err != nil || listed.Key != group || len(listed.Holders) != 2 || listed.Waiting != 1 ||
				listed.Label != "first" || listed.Holders[1].Label != "second" {
				w.Errorf("%+v, %v", listed, err)
			}
			seen++
		}
		if seen != 1 {
			w.Errorf("%d groups are listed", seen)
		}
		if _, err := l.ForceRelease(w.Context(), group, ""); !errors.Is(err, locker.ErrInvalid) {
			w.Errorf("nobody is named: %v", err)
		}
		if _, err := l.ForceRelease(w.Context(), group, second.Token()); err != nil {
			w.Error(err)
		}
		if err := second.Extend(w.Context()); !errors.Is(err, locker.ErrLost) {
			w.Errorf("what was taken is extended: %v", err)
		}
		w.unlock(first)
		w.unlock(<-writer)
		w.empty()
	})
}
