package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
)

// Acquire implements [locker.Backend]. It makes two round trips: one for the lease, and one for the entry.
func (b *Backend) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	grants, err := b.AcquireMany(ctx, []locker.Request{req})
	var about *locker.Error
	if errors.As(err, &about) {
		err = about.Err
	}
	if err != nil {
		return locker.Grant{}, err
	}
	return grants[0], nil
}

// AcquireMany implements [locker.ManyAcquirer], with one transaction for all entries. etcd limits the size of a
// transaction (--max-txn-ops); the error matches errors.ErrUnsupported if there are too many locks.
func (b *Backend) AcquireMany(ctx context.Context, reqs []locker.Request) ([]locker.Grant, error) {
	ctx, cancel, err := b.bounded(ctx, min(b.timeout, reqs[0].TTL))
	if err != nil {
		return nil, err
	}
	defer cancel()
	leases, err := b.leasesFor(ctx, reqs)
	if err != nil {
		return nil, err
	}
	grants, err := b.enter(ctx, reqs, leases)
	if err != nil {
		for i, l := range leases {
			b.revoke(l, reqs[i].TTL)
		}
	}
	return grants, err
}

// maxLeases is how many leases are asked for at once.
const maxLeases = 16

// leasesFor makes a lease for each request.
func (b *Backend) leasesFor(ctx context.Context, reqs []locker.Request) ([]ttl, error) {
	leases, errs := make([]ttl, len(reqs)), make([]error, len(reqs))
	if len(reqs) == 1 {
		leases[0], errs[0] = b.lease(ctx, reqs[0].TTL)
		return leases, errs[0]
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxLeases)
	for i, req := range reqs {
		slots <- struct{}{}
		wg.Go(func() {
			leases[i], errs[i] = b.lease(ctx, req.TTL)
			<-slots
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	for i, l := range leases {
		if err != nil && errs[i] == nil {
			b.revoke(l, reqs[i].TTL)
		}
	}
	return leases, err
}

// enter writes all entries, if all directories are free.
func (b *Backend) enter(ctx context.Context, reqs []locker.Request, leases []ttl) ([]locker.Grant, error) {
	var all []clientv3.Cmp
	var puts, firsts []clientv3.Op
	for i, req := range reqs {
		dir := b.dir(req.Key)
		all = append(all, free(dir))
		puts = append(puts, clientv3.OpPut(dir+req.Token, req.Label, clientv3.WithLease(leases[i].id)))
		firsts = append(firsts, first(dir))
	}
	resp, err := b.kv.Txn(ctx).If(all...).Then(puts...).Else(firsts...).Commit()
	if errors.Is(rpctypes.Error(err), rpctypes.ErrTooManyOps) {
		return nil, errors.ErrUnsupported
	}
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	grants := make([]locker.Grant, len(reqs))
	for i, req := range reqs {
		if resp.Succeeded {
			grants[i] = granted(resp.Header.Revision, leases[i])
			continue
		}
		kvs := resp.Responses[i].GetResponseRange().Kvs
		switch {
		case len(kvs) == 0: // another of the locks is held
		case string(kvs[0].Key) != b.entry(req.Key, req.Token):
			return nil, &locker.Error{Op: "trylock", Key: req.Key, Err: heldBy(kvs[0])}
		default:
			grants[i] = granted(kvs[0].CreateRevision, ttl{id: clientv3.LeaseID(kvs[0].Lease), asks: leases[i].asks})
		}
	}
	if !resp.Succeeded {
		return b.again(ctx, grants, leases, reqs)
	}
	return grants, nil
}

// again answers requests that were executed before: it extends the leases that the entries have, and gives up the new
// ones. Every request had an entry, because one transaction wrote all entries. If one is missing, it has ended since,
// and again fails.
func (b *Backend) again(
	ctx context.Context, grants []locker.Grant, leases []ttl, reqs []locker.Request,
) ([]locker.Grant, error) {
	for i, g := range grants {
		h, ok := g.Private.(*holding)
		if !ok {
			return nil, fmt.Errorf("%w: a part of the locks has ended meanwhile", locker.ErrUnavailable)
		}
		if err := b.renew(ctx, h); err != nil {
			return nil, err
		}
		l, _ := h.get()
		grants[i].Sent = l.sent
		if leases[i].id != l.id { // otherwise something on the way to etcd has sent the transaction twice
			b.revoke(leases[i], reqs[i].TTL)
		}
	}
	return grants, nil
}
