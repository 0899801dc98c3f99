package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// No lease of a holder is ever renewed. Grants, revocations and writes go through the log of etcd. Renewals are in the
// memory of one member, the leader. When a leader has stood still, and goes on, it does not know of the renewals that
// its successor has answered meanwhile. It ends these leases, long before their time. So an extension moves the entry
// to a lease that was just granted, whose time begins with the grant on all members alike.
//
// A move says: if the entry is the one that was created at this revision, is not released, and its lease has a smaller
// number, it gets this lease. The numbers of leases grow. So a move that is executed late, after another one, has no
// effect, and the next move has the right effect whether or not the last one was executed. Nobody needs to know which
// lease an entry has. A lease is revoked only when no entry of ours has it, or can come to have it.

// move is the entry of a lock that is to have another lease.
type move struct {
	req     backend.Request
	dir     string
	entry   string
	holding *holding
	seconds int64 // the TTL of the lease
	outcome chan error
}

func (b *store) newMove(req backend.Request, h *holding) *move {
	dir := b.dir(req.Key)
	return &move{req, dir, dir + req.Token, h, seconds(req.TTL), make(chan error, 1)}
}

func (m *move) op(l *lease) clientv3.Op {
	same := append(owns(m.entry, m.holding.revision), clientv3.Compare(clientv3.LeaseValue(m.entry), "<", l.id))
	put, otherwise := clientv3.OpPut(m.entry, m.req.Label, clientv3.WithLease(l.id)), first(m.dir)
	if m.req.Group != nil { // its value stays, whatever it is
		put = clientv3.OpPut(m.entry, "", clientv3.WithLease(l.id), clientv3.WithIgnoreValue())
		otherwise = clientv3.OpGet(m.entry)
	}
	return clientv3.OpTxn(same, []clientv3.Op{put}, []clientv3.Op{otherwise})
}

// maxMoves is how many entries one transaction moves. etcd takes 128 operations of each level in a transaction, unless
// --max-txn-ops says otherwise, and counts all levels: the inner ones have three comparisons.
const maxMoves = 100

// attach moves entries to a lease in one transaction. It tells each move how that went, with an error that matches
// locker.ErrNotHeld or locker.ErrUnavailable, or nil.
func (b *store) attach(ctx context.Context, l *lease, moves []*move) {
	ops := make([]clientv3.Op, len(moves))
	for i, m := range moves {
		ops[i] = m.op(l)
	}
	resp, err := b.kv.Txn(ctx).Then(ops...).Commit()
	switch c := code(err); {
	case err == nil:
		for i, m := range moves {
			m.outcome <- b.attached(l, m, resp.Responses[i].GetResponseTxn())
		}
		return
	case len(moves) > 1 && (c == codes.InvalidArgument || c == codes.PermissionDenied):
		// It is too large, or contains an entry twice, or one for which the user has no permission any more.
		b.attach(ctx, l, moves[:len(moves)/2])
		b.attach(ctx, l, moves[len(moves)/2:])
		return
	}
	refused := unexecuted(err)
	err = unavailable(ctx, err)
	for _, m := range moves {
		if refused {
			b.leave(m.holding.refused(l))
		}
		m.outcome <- err
	}
}

// attached reads the answer to one move.
func (b *store) attached(l *lease, m *move, resp *pb.TxnResponse) error {
	h := m.holding
	if resp.Succeeded {
		b.leave(h.moved(l))
		return nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	mine := len(kvs) > 0 && string(kvs[0].Key) == m.entry && string(kvs[0].Value) != keptValue &&
		(h.revision == 0 || kvs[0].CreateRevision == h.revision)
	switch {
	case !mine:
		b.leave(h.ended())
		return notHeld(m.req, kvs)
	case clientv3.LeaseID(kvs[0].Lease) == l.id: // something on the way to etcd has sent the request twice
		b.leave(h.moved(l))
		return nil
	}
	b.leave(h.refused(l))
	b.numbers.skip(clientv3.LeaseID(kvs[0].Lease)) // it may be of another backend: the next move has effect
	return fmt.Errorf("%w: %w", locker.ErrUnavailable, errors.New("a later request has moved the lock's entry"))
}

// rounds make the moves of extensions. Those that come at about the same time share a lease and a transaction.
type rounds struct {
	tasks sync.WaitGroup

	mu      sync.Mutex
	waiting []*move
	running bool
}

const (
	// gathering is how long the first extension waits for others. A Client sends those that are due together within
	// that time.
	gathering = 2 * time.Millisecond

	// roundStalls is after which time a round lets the next one begin, which another member may answer.
	roundStalls = 100 * time.Millisecond
)

// extend moves the entry of a lock to a lease that is granted after the call.
func (b *store) extend(ctx context.Context, m *move) error {
	r := &b.rounds
	r.mu.Lock()
	if b.open.Err() != nil {
		r.mu.Unlock()
		return locker.ErrClosed
	}
	r.waiting = append(r.waiting, m)
	if !r.running {
		r.running = true
		r.tasks.Go(b.runRounds)
	}
	r.mu.Unlock()
	select {
	case err := <-m.outcome:
		return err
	case <-ctx.Done():
	}
	r.mu.Lock()
	r.waiting = slices.DeleteFunc(r.waiting, func(other *move) bool { return other == m })
	r.mu.Unlock()
	b.connections.suspect()
	return unavailable(ctx, ctx.Err())
}

// runRounds begins rounds until nobody waits for one.
func (b *store) runRounds() {
	r := &b.rounds
	pause := gathering
	for {
		select {
		case <-time.After(pause):
		case <-b.open.Done():
		}
		r.mu.Lock()
		waiting := r.waiting
		r.waiting, r.running = nil, len(waiting) > 0
		r.mu.Unlock()
		if len(waiting) == 0 {
			return
		}
		bySeconds := make(map[int64][]*move) // a lock is to end by its own TTL after a crash
		for _, m := range waiting {
			bySeconds[m.seconds] = append(bySeconds[m.seconds], m)
		}
		ended := make(chan struct{})
		var all sync.WaitGroup
		for _, moves := range bySeconds {
			all.Add(1)
			// A round that stalls must not get a number above that of a later one, which may have been answered.
			number := b.numbers.next()
			r.tasks.Go(func() {
				defer all.Done()
				b.round(number, moves)
			})
		}
		r.tasks.Go(func() {
			all.Wait()
			close(ended)
		})
		select {
		case <-ended:
		case <-time.After(roundStalls):
		}
		pause = 0
	}
}

// round makes a lease with the given number, and moves entries to it.
func (b *store) round(number int64, moves []*move) {
	fail := func(err error) {
		for _, m := range moves {
			m.outcome <- err
		}
	}
	ttl := time.Duration(moves[0].seconds) * time.Second
	ctx, cancel, err := b.bounded(context.Background(), min(b.timeout, ttl))
	if err != nil {
		fail(err)
		return
	}
	defer cancel()
	l, err := b.numbered(ctx, number, ttl, len(moves))
	if err != nil {
		fail(err)
		return
	}
	for _, m := range moves {
		m.holding.mayHave(l)
	}
	var all sync.WaitGroup
	for part := range slices.Chunk(moves, maxMoves) {
		all.Go(func() { b.attach(ctx, l, part) })
	}
	all.Wait()
}

// wait returns when no round is in progress. It is called after the end of the backend's context.
func (r *rounds) wait() {
	r.mu.Lock()   // extend may be about to begin one
	r.mu.Unlock() //nolint:staticcheck // the section is empty on purpose
	r.tasks.Wait()
}
