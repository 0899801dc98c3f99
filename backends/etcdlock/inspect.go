package etcdlock

import (
	"context"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

// ownerPrefixLen is how many bytes of an owner's token are shown.
const ownerPrefixLen = 8

// Inspect implements [inspect.Inspector]. It makes two round trips, and more if the lock is extended in between. etcd
// does not know how long a lock has been held. If tokens were raised since, the token is shown as if it had been
// granted after that.
func (b *store) Inspect(ctx context.Context, key string) (seen inspect.Inspection, err error) {
	var owner, last *mvccpb.KeyValue
	for {
		seen, owner, err = b.inspect(ctx, key)
		moved := owner != nil && (last == nil || last.Lease != owner.Lease)
		if err != nil || seen.Remaining > 0 || !moved {
			return seen, err
		}
		last = owner // its lease has ended since it was read: perhaps the entry has another one
	}
}

func (b *store) inspect(ctx context.Context, key string) (inspect.Inspection, *mvccpb.KeyValue, error) {
	unknown := inspect.Inspection{State: inspect.Unknown}
	ctx, cancel, err := b.bounded(ctx, b.timeout)
	if err != nil {
		return unknown, nil, err
	}
	defer cancel()
	resp, err := b.kv.Txn(ctx).Then(first(b.dir(key)), b.readTokens()).Commit()
	if err != nil {
		return unknown, nil, unavailable(ctx, err)
	}
	entries := resp.Responses[0].GetResponseRange()
	if len(entries.Kvs) == 0 {
		return inspect.Inspection{State: inspect.Free}, nil, nil
	}
	owner := entries.Kvs[0]
	seen := inspect.Inspection{
		State: inspect.Held, Label: labelOf(owner), Waiting: int(entries.Count) - 1,
	}
	if record := recordOf(resp.Responses[1]); record != nil {
		seen.Fence, _ = fence(record, owner.CreateRevision)
	}
	switch {
	case owner.Lease == 0:
		return inspect.Inspection{State: inspect.Foreign}, owner, nil
	case string(owner.Value) == keptValue:
		seen.State = inspect.Kept
	default:
		token := strings.TrimPrefix(string(owner.Key), b.dir(key))
		seen.Owner = token[:min(ownerPrefixLen, len(token))]
	}
	left, err := b.leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: owner.Lease})
	if err != nil {
		return unknown, nil, unavailable(ctx, err)
	}
	seen.Remaining = time.Duration(max(0, left.TTL)) * time.Second // -1: it ended just now
	return seen, owner, nil
}

// ForceRelease implements [inspect.Inspector].
func (b *store) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	seen, entry, err := b.inspect(ctx, key)
	switch {
	case err != nil:
		return seen, err
	case seen.State == inspect.Foreign:
		return seen, heldBy(entry)
	case seen.State == inspect.Free || seen.State == inspect.Kept && owner != "":
		return seen, locker.ErrNotHeld
	case !strings.HasPrefix(strings.TrimPrefix(string(entry.Key), b.dir(key)), owner):
		return seen, locker.ErrNotHeld
	}
	ctx, cancel, err := b.bounded(ctx, b.timeout)
	if err != nil {
		return seen, err
	}
	defer cancel()
	name := string(entry.Key)
	// The holder may extend the lock meanwhile, which writes the entry again.
	same := []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(name), "=", entry.CreateRevision),
		clientv3.Compare(clientv3.Value(name), "=", string(entry.Value)),
	}
	resp, err := b.kv.Txn(ctx).If(same...).Then(clientv3.OpDelete(name)).Commit()
	switch {
	case err != nil:
		return seen, unavailable(ctx, err)
	case !resp.Succeeded:
		return seen, locker.ErrNotHeld
	}
	return seen, nil
}
