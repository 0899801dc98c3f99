package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/placename"
)

// readAll reads a directory, in the order in which its entries were created.
func readAll(dir string) clientv3.Op {
	return clientv3.OpGet(dir, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision,
		clientv3.SortAscend))
}

// readWaiters reads the waiters of a directory.
func readWaiters(dir string) clientv3.Op {
	return clientv3.OpGet(dir+waits, clientv3.WithPrefix())
}

// holders is where the names of those begin that have something of a group. They go on to the end of the directory.
func holders(dir string) string { return clientv3.GetPrefixRangeEnd(dir + waits) }

// nobodySince says that nobody was granted anything of a group after a revision.
func nobodySince(dir string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(holders(dir)), "<", revision+1).
		WithRange(clientv3.GetPrefixRangeEnd(dir))
}

// noneSince says that, in addition, no waiter has come.
func noneSince(dir string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(dir), "<", revision+1).WithPrefix()
}

// never is not true. It is about a name that the user may read.
func (b *store) never() clientv3.Cmp {
	return clientv3.Compare(clientv3.Version(b.tokensName()), "<", 0)
}

// upgradeable says that the lock that an upgrade is of is as it was read.
func (g *group) upgradeable(want *backend.Group) (same []clientv3.Cmp) {
	if from := find(g.held, want.From); from != nil {
		same = []clientv3.Cmp{clientv3.Compare(clientv3.Value(from.name), "=", from.value)}
	}
	return same
}

// taken is what a transaction has granted.
type taken struct {
	place
	revision int64
	record   *mvccpb.KeyValue // of the tokens
	before   *seat            // the entry that was there already; nil: there was none
}

// wanted is what an entry of req says.
func wanted(req *backend.Request) place {
	return place{want: *req.Group, seconds: seconds(req.TTL), label: req.Label}
}

// enter takes what req wants with the lease l, unless others have it or wait for it. It fails with errLost if others
// come at the same time.
func (b *store) enter(ctx context.Context, req *backend.Request, l *lease) (*taken, error) {
	dir, p := b.dir(req.Key), wanted(req)
	apart := placename.Apart(req.Key, p.want.Kind != backend.Permit)
	read := []clientv3.Op{readAll(dir), b.readTokens()}
	put := func() []clientv3.Op {
		return []clientv3.Op{clientv3.OpPut(dir+req.Token, p.text(), clientv3.WithLease(l.id)), b.drawTokens()}
	}
	alone := []clientv3.Cmp{free(dir)}
	otherwise := read
	for _, name := range apart {
		alone = append(alone, free(b.dir(name)))
		otherwise = append(otherwise[:len(otherwise):len(otherwise)], first(b.dir(name)))
	}
	for i := range p.want.Weight {
		p.permits = append(p.permits, i)
	}
	if p.want.From != "" { // the lock to be upgraded is in there
		alone, otherwise = []clientv3.Cmp{b.never()}, read
	}
	resp, err := b.kv.Txn(ctx).If(alone...).Then(put()...).Else(otherwise...).Commit()
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	if !resp.Succeeded {
		kvs := resp.Responses[0].GetResponseRange().Kvs
		g, err := groupOf(dir, kvs, resp.Header.Revision, p.want.Kind == backend.Permit)
		if err != nil {
			return nil, err
		}
		if own := find(g.held, req.Token); own != nil { // the request was sent twice
			return &taken{own.place, own.created, recordOf(resp.Responses[1]), own}, nil
		}
		if len(kvs) == 0 {
			for _, other := range resp.Responses[2:] {
				for _, kv := range other.GetResponseRange().Kvs {
					return nil, fmt.Errorf("%w: %.64q is of a program that makes a lock of each place", locker.ErrForeignKey, kv.Key)
				}
			}
		}
		if p.permits, err = g.admit(&p.want); err != nil {
			return nil, err
		}
		same := append(g.upgradeable(&p.want), noneSince(dir, g.revision))
		switch resp, err = b.kv.Txn(ctx).If(same...).Then(put()...).Commit(); {
		case err != nil:
			return nil, unavailable(ctx, err)
		case !resp.Succeeded:
			return nil, errLost
		}
	}
	return &taken{p, resp.Header.Revision, drawn(resp.Responses[1]), nil}, nil
}

// try takes what req wants for a caller that does not wait, while others come at the same time. If each of them took
// what it wants by itself, only one would come forward for each reading of the group. So it queues, and one transaction
// serves many of them. It leaves if those before it leave too little. Others pass it then; see passes.
func (b *store) try(ctx context.Context, req *backend.Request, l *lease) (*taken, error) {
	p := wanted(req)
	p.tries = true
	put := clientv3.OpPut(waiterName(b.dir(req.Key), req.Token), p.text(), clientv3.WithLease(l.id))
	if _, err := b.kv.Txn(ctx).Then(put).Commit(); err != nil {
		return nil, unavailable(ctx, err)
	}
	t, g, err := b.handOn(ctx, req.Key, p.want.Kind == backend.Permit, req.Token)
	switch {
	case err != nil || t != nil:
		return t, err
	case p.want.From != "" && !g.has(&p.want):
		return nil, locker.ErrNotHeld
	case g.place(req.Token) < 0: // somebody has deleted it
		return nil, unavailable(ctx, errGone)
	}
	return nil, g.refusal(&p.want)
}

// acquireEntry is Acquire for an entry of a group.
func (b *store) acquireEntry(ctx context.Context, req backend.Request) (backend.Grant, error) {
	ctx, cancel, err := b.bounded(ctx, min(b.timeout, req.TTL))
	if err != nil {
		return backend.Grant{}, err
	}
	defer cancel()
	if err := b.chores.Backlog(); err != nil {
		return backend.Grant{}, unavailable(ctx, err)
	}
	l, err := b.lease(ctx, req.TTL, 1)
	if err != nil {
		return backend.Grant{}, err
	}
	g, err := b.enterWith(ctx, req, l)
	if err != nil {
		b.revoke(l)
	}
	return g, err
}

func (b *store) enterWith(ctx context.Context, req backend.Request, l *lease) (backend.Grant, error) {
	t, err := b.enter(ctx, &req, l)
	if errors.Is(err, errLost) {
		t, err = b.try(ctx, &req, l)
	}
	if err != nil {
		return backend.Grant{}, err
	}
	h := newHolding(t.revision, l)
	if t.before != nil {
		h = newHolding(t.revision, nil)
		h.mayHave(l)
		b.numbers.skip(t.before.lease) // it may be of another backend
		if err := b.again(ctx, l, []*move{b.newMove(req, h)}, 1); err != nil {
			return backend.Grant{}, err
		}
	}
	h.is(t.place)
	return b.granted(ctx, req, h, l.sent, t.record)
}

// serve grants what served get, as it was read.
func (b *store) serve(ctx context.Context, dir string, g *group, served []seat) (*clientv3.TxnResponse, error) {
	same := []clientv3.Cmp{nobodySince(dir, g.revision)}
	var grants []clientv3.Op
	for _, w := range served {
		same = append(append(same, clientv3.Compare(clientv3.CreateRevision(w.name), "=", w.created)),
			g.upgradeable(&w.want)...)
		grants = append(grants, clientv3.OpDelete(w.name),
			clientv3.OpPut(dir+w.token, w.text(), clientv3.WithLease(w.lease)))
	}
	return b.kv.Txn(ctx).If(same...).Then(append(grants, b.readTokens())...).Commit()
}

// maxServed is how many waiters one transaction serves. etcd takes 128 operations in a transaction, unless
// --max-txn-ops says otherwise.
const maxServed = 60

// isTooLarge reports whether a transaction has too many operations, or too long names, for etcd or for gRPC. Those that
// serve one waiter have not.
func isTooLarge(err error) bool {
	full := errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace)
	c := code(err)
	return c == codes.InvalidArgument || c == codes.ResourceExhausted && !full
}

// handOn serves all waiters that have room. It returns the place of an owner, as soon as that has one, or the group,
// once no waiter in it has room any more.
func (b *store) handOn(ctx context.Context, key string, permits bool, token string) (*taken, *group, error) {
	dir := b.dir(key)
	for most := maxServed; ; {
		resp, err := b.kv.Txn(ctx).Then(readAll(dir), b.readTokens()).Commit()
		if err != nil {
			return nil, nil, unavailable(ctx, err)
		}
		g, err := groupOf(dir, resp.Responses[0].GetResponseRange().Kvs, resp.Header.Revision, permits)
		if err != nil {
			return nil, nil, err
		}
		if own := find(g.held, token); own != nil {
			return &taken{own.place, own.created, recordOf(resp.Responses[1]), nil}, g, nil
		}
		served := g.next(most)
		if len(served) == 0 {
			return nil, g, nil
		}
		switch resp, err = b.serve(ctx, dir, g, served); {
		case isTooLarge(err) && most > 1:
			most = 1
		case err != nil:
			return nil, nil, unavailable(ctx, err)
		case resp.Succeeded:
			if own := find(served, token); own != nil {
				return &taken{own.place, resp.Header.Revision, recordOf(resp.Responses[len(resp.Responses)-1]), nil}, g, nil
			}
		}
	}
}

// share makes a lock of a group a shared one.
func (b *store) share(ctx context.Context, req backend.Request, h *holding) error {
	if p := h.what(); p != nil && p.want.Kind == backend.Shared {
		return nil
	}
	for entry := b.entry(req.Key, req.Token); ; {
		kv, err := b.own(ctx, req)
		if err != nil {
			return err
		}
		m, err := seatOf(b.dir(req.Key), kv)
		if err != nil {
			return err
		}
		if m.want.Kind != backend.Shared {
			lowered := m.place
			lowered.want = backend.Group{Kind: backend.Shared}
			same := append(owns(entry, h.revision), clientv3.Compare(clientv3.Value(entry), "=", m.value))
			put := clientv3.OpPut(entry, lowered.text(), clientv3.WithIgnoreLease())
			resp, err := b.kv.Txn(ctx).If(same...).Then(put).Commit()
			if err != nil {
				return unavailable(ctx, err)
			}
			if !resp.Succeeded {
				continue
			}
			b.chores.Repeat(time.Now().Add(b.timeout), func(ctx context.Context) error {
				_, _, err := b.handOn(undated{ctx}, req.Key, false, "")
				if errors.Is(err, locker.ErrForeignKey) {
					return nil // nobody waits in there
				}
				return err
			})
			m.place = lowered
		}
		h.is(m.place)
		return nil
	}
}

// keptText returns what says that the entry of req stays taken without an owner.
func (b *store) keptText(ctx context.Context, req backend.Request, h *holding) (string, error) {
	p := h.what()
	if p == nil {
		kv, err := b.own(ctx, req)
		if err != nil {
			return "", err
		}
		m, err := seatOf(b.dir(req.Key), kv)
		if err != nil {
			return "", err
		}
		p = &m.place
	}
	kept := *p
	kept.label = ""
	return kept.text(), nil
}

// isWanted reports whether somebody waits that may have to wait for what req has.
func (b *store) isWanted(ctx context.Context, req backend.Request) (bool, error) {
	dir, permits := b.dir(req.Key), req.Group.Kind == backend.Permit
	resp, err := b.kv.Txn(ctx).Then(readWaiters(dir)).Commit()
	if err != nil {
		return false, err
	}
	g, err := groupOf(dir, resp.Responses[0].GetResponseRange().Kvs, resp.Header.Revision, permits)
	if err != nil {
		return false, nil //nolint:nilerr // an entry that is no waiter waits for nothing
	}
	has := place{want: *req.Group, permits: []int{0}}
	if p := holdingOf(req).what(); p != nil {
		has = *p
	}
	return wants(g.waiting, &has, req.Token), nil
}
