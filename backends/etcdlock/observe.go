package etcdlock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

// asking is how many leases are asked about at a time.
const asking = 16

// inspectGroup returns the group of key, and the entry that is shown: the one whose time is over first, of those of
// owners that begin with owner. It asks for each lease how much is left. The entry is nil if there is none.
func (b *store) inspectGroup(ctx context.Context, key, owner string) (seen inspect.Inspection, shown *seat, err error) {
	unknown := inspect.Inspection{State: inspect.Unknown}
	ctx, cancel, err := b.bounded(ctx, b.timeout)
	if err != nil {
		return unknown, nil, err
	}
	defer cancel()
	dir := b.dir(key)
	resp, err := b.kv.Txn(ctx).Then(readAll(dir), b.readTokens()).Commit()
	if err != nil {
		return unknown, nil, unavailable(ctx, err)
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	permits := len(kvs) > 0 && isPermit(string(kvs[0].Value))
	g, err := groupOf(dir, kvs, resp.Header.Revision, permits)
	if err != nil {
		return inspect.Inspection{State: inspect.Foreign}, nil, nil
	}
	left, err := b.timesOf(ctx, g.held)
	if err != nil {
		return unknown, nil, err
	}
	slices.SortStableFunc(g.held, func(a, b seat) int { return cmp.Compare(left[a.lease], left[b.lease]) })
	show := func(m *seat) inspect.Inspection {
		i := inspect.Inspection{
			State: inspect.Held, Label: m.label, Permits: m.permits, Kind: m.want.Kind.String(),
			Owner: m.token[:min(ownerPrefixLen, len(m.token))], Remaining: left[m.lease],
		}
		if m.kept {
			i.State = inspect.Kept
		}
		if record := recordOf(resp.Responses[1]); record != nil {
			i.Fence, _ = fence(record, m.created)
			i.Fence += uint64(m.offset)
		}
		return i
	}
	seen = inspect.Inspection{State: inspect.Free}
	var all []inspect.Inspection
	for i := range g.held {
		m := &g.held[i]
		all = append(all, show(m))
		if shown == nil && strings.HasPrefix(m.token, owner) {
			seen, shown = show(m), m
		}
	}
	if shown == nil && len(all) > 0 {
		seen = all[0]
	}
	seen.Waiting, seen.Holders = len(g.waiting), all
	return seen, shown, nil
}

// timesOf returns how much is left of the leases of some entries.
func (b *store) timesOf(ctx context.Context, of []seat) (left map[clientv3.LeaseID]time.Duration, err error) {
	left = make(map[clientv3.LeaseID]time.Duration)
	var leases []clientv3.LeaseID
	for _, m := range of {
		if _, ok := left[m.lease]; !ok {
			left[m.lease] = 0
			leases = append(leases, m.lease)
		}
	}
	var mu sync.Mutex
	for some := range slices.Chunk(leases, asking) {
		var all sync.WaitGroup
		for _, id := range some {
			all.Go(func() {
				resp, failed := b.leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: int64(id)})
				mu.Lock()
				defer mu.Unlock()
				if failed != nil {
					err = unavailable(ctx, failed)
					return
				}
				left[id] = time.Duration(max(0, resp.TTL)) * time.Second // -1: it ended just now
			})
		}
		all.Wait()
	}
	return left, err
}

// forceEntry is ForceRelease of an entry of a group.
func (b *store) forceEntry(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	seen, m, err := b.inspectGroup(ctx, key, owner)
	switch n := len(seen.Holders); {
	case err != nil:
		return seen, err
	case m == nil:
		return seen, locker.ErrNotHeld
	case owner == "" && n > 1:
		return seen, fmt.Errorf("%w: %d owners have something of the group, and none is named", locker.ErrInvalid, n)
	}
	ctx, cancel, err := b.bounded(ctx, b.timeout)
	if err != nil {
		return seen, err
	}
	defer cancel()
	same := clientv3.Compare(clientv3.CreateRevision(m.name), "=", m.created)
	resp, err := b.kv.Txn(ctx).If(same).Then(clientv3.OpDelete(m.name)).Commit()
	switch {
	case err != nil:
		return seen, unavailable(ctx, err)
	case !resp.Succeeded:
		return seen, locker.ErrNotHeld
	}
	seen.Holders = nil
	return seen, nil
}
