package contention

import (
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/rwlock"
)

// readers judges readers and writers of one key from outside.
type readers struct {
	t *testing.T

	mu      sync.Mutex
	in      int    // readers
	writing uint64 // the token of the writer; 0: none
	newest  uint64 // the greatest token of those that were in
	wrote   uint64 // the greatest token of a writer
}

func (r *readers) reads(fence uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writing > 0 {
		r.t.Errorf("a reader beside the writer %d", r.writing)
	}
	if fence <= r.wrote {
		r.t.Errorf("a reader has the token %d after the writer %d", fence, r.wrote)
	}
	r.in++
	r.newest = max(r.newest, fence)
}

func (r *readers) read() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.in--
}

func (r *readers) writes(fence uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writing > 0 || r.in > 0 {
		r.t.Errorf("a writer beside %d readers and the writer %d", r.in, r.writing)
	}
	if fence <= r.newest {
		r.t.Errorf("a writer has the token %d after %d", fence, r.newest)
	}
	r.writing, r.newest, r.wrote = fence, fence, fence
}

// written ends the work of the writer. If it goes on as a reader, nobody else has written before it is one.
func (r *readers) written(reads bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writing = 0
	if reads {
		r.in++
	}
}

// ReadersAndWriters has callers of each client read, write, upgrade and downgrade, and judges from outside: no writer
// is beside a reader or another writer, tokens grow from writer to writer and from readers to writers and back, and
// everything is given back.
func ReadersAndWriters(t *testing.T, clients []locker.Locker) {
	t.Helper()
	const rounds = 5
	key, ttl := "config", locker.TTL(30*time.Second)
	judge := &readers{t: t}
	work := func(lease locker.Lease) { // takes as long as a request, and shows that the lease is held
		if err := lease.Extend(t.Context()); err != nil {
			t.Error(err)
		}
	}
	must := func(lease locker.Lease, err error) locker.Lease {
		if err != nil {
			panic(err)
		}
		return lease
	}
	release := func(lease locker.Lease) {
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	var beside []locker.Lease // readers beside each other
	for _, c := range clients {
		beside = append(beside, must(rwlock.New(c).Shared().TryLock(t.Context(), key, ttl)))
	}
	for _, lease := range beside {
		release(lease)
	}
	var all sync.WaitGroup
	for _, c := range clients {
		rw := rwlock.New(c)
		for i := range 4 {
			all.Go(func() {
				for range rounds {
					switch i {
					case 0:
						lease := must(rw.Exclusive().Lock(t.Context(), key, ttl))
						judge.writes(lease.Fence())
						work(lease)
						judge.written(true)
						reader := must(rwlock.Downgrade(t.Context(), lease))
						work(reader)
						judge.read()
						release(reader)
					case 1:
						lease := must(rw.Upgradeable().Lock(t.Context(), key, ttl))
						judge.reads(lease.Fence())
						work(lease)
						judge.read()
						writer := must(rwlock.Upgrade(t.Context(), lease))
						judge.writes(writer.Fence())
						work(writer)
						judge.written(false)
						release(writer)
					default:
						lease := must(rw.Shared().Lock(t.Context(), key))
						judge.reads(lease.Fence())
						work(lease)
						judge.read()
						release(lease)
					}
				}
			})
		}
	}
	all.Wait()
	if err := NothingLeft(t.Context(), clients[0], rwlock.New(nil).Locks(key)); err != nil {
		t.Error(err)
	}
}
