package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// Condition returns comparisons that are true while etcd has the lock for lease. In the condition of a transaction they
// make it take effect only if the lock still belongs to the lease at that moment. This is the strongest form of
// fencing: no pause of the process, and no clock, can make a late write take effect.
//
//	condition, err := etcdlock.Condition(lease)
//	…
//	resp, err := client.Txn(ctx).If(condition...).Then(clientv3.OpPut("report", text)).Commit()
//	// resp.Succeeded is false if the lock was lost
//
// The transaction must be executed by the etcd that has the lock. A lease of [locker.LockAll] gives the comparisons of
// all its locks. Condition sends nothing. Errors match locker.ErrLost and locker.ErrUnlocked if the lease has ended,
// and errors.ErrUnsupported if it is not from this package, or hidden by middleware.
func Condition(lease locker.Lease) ([]clientv3.Cmp, error) {
	c := new(condition)
	err := locker.Bind(context.Background(), lease, c)
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("locker: condition %.64q: the lease is not from package etcd: %w", lease.Key(),
			errors.ErrUnsupported)
	}
	if err != nil {
		return nil, err
	}
	return c.owns, nil
}

// Bind implements [backend.Binder], for the condition of a call of [Condition]. All leases of a grant have one entry.
// Bind sends nothing: etcd compares when the transaction is executed.
func (b *store) Bind(_ context.Context, req backend.Request, to any) error {
	c, ok := to.(*condition)
	if !ok {
		return errors.ErrUnsupported
	}
	c.add(owns(b.entry(req.Key, req.Token), holdingOf(req).revision))
	return nil
}

// condition collects the comparisons of one or more leases.
type condition struct {
	mu   sync.Mutex
	owns []clientv3.Cmp
}

func (c *condition) add(owns []clientv3.Cmp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owns = append(c.owns, owns...)
}
