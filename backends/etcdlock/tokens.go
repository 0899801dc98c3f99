package etcdlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// A revision of etcd owns backend.MaxFences tokens. They are counted from a record of the prefix:
//
//	token = value of the record + (revision − create revision of the record) × backend.MaxFences
//
// The value is a number after the version of its meaning, and of what entries mean. It is the time in microseconds at
// which the record was created, unless it was raised. Each grant reads the record in the transaction that finds the
// lock to be its own. So of two grants, the later one has a base that is not smaller, and a greater revision. Nothing
// else reads a clock: one that is set back makes no token fall.

// maxToken is where tokens end: Lua and JavaScript know no greater number exactly. The clock is there in 2255.
const maxToken = 1 << 53

// tokensKey is the name of the record, without the prefix. It has no slash, so it is outside of the directories of all
// locks of the prefix.
const tokensKey = "%tokens"

// tokensVersion is before the number in the value of the record. Programs that know only numbers refuse it: they renew
// the leases of holders. A number alone is from them, and means the same; see store.granted.
const tokensVersion = "v2 "

func (b *store) tokensName() string { return b.prefix + tokensKey }

// readTokens reads the record.
func (b *store) readTokens() clientv3.Op { return clientv3.OpGet(b.tokensName()) }

// drawTokens reads the record, and creates it first if there is none.
func (b *store) drawTokens() clientv3.Op {
	name := b.tokensName()
	absent := clientv3.Compare(clientv3.CreateRevision(name), "=", 0)
	create := clientv3.OpPut(name, tokensVersion+strconv.FormatInt(time.Now().UnixMicro(), 10))
	return clientv3.OpTxn([]clientv3.Cmp{absent}, []clientv3.Op{create, b.readTokens()}, []clientv3.Op{b.readTokens()})
}

// drawn returns the record that drawTokens has read.
func drawn(resp *pb.ResponseOp) *mvccpb.KeyValue {
	all := resp.GetResponseTxn().Responses
	return all[len(all)-1].GetResponseRange().Kvs[0]
}

// recordOf returns what readTokens has read, or nil if somebody has deleted the record.
func recordOf(resp *pb.ResponseOp) *mvccpb.KeyValue {
	if kvs := resp.GetResponseRange().Kvs; len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}

// base returns the value of the record.
func base(record *mvccpb.KeyValue) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimPrefix(string(record.Value), tokensVersion), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%w: tokens are counted from the value of %.64q, and this version does not know %.64q: use the "+
			"version of the library that has written it, or delete it, and tokens begin at the clock again",
			locker.ErrUnavailable, record.Key, record.Value)
	}
	return n, nil
}

// fence returns the first token of a revision.
func fence(record *mvccpb.KeyValue, revision int64) (uint64, error) {
	n, err := base(record)
	if err != nil {
		return 0, err
	}
	since := revision - record.CreateRevision // negative if the record was deleted after that revision
	most := (maxToken-n)/backend.MaxFences - 1
	if n > maxToken || since > most || n+since*backend.MaxFences <= 0 {
		return 0, fmt.Errorf("%w: tokens that are counted from %.64q are not between 0 and 2⁵³", locker.ErrUnavailable,
			record.Key)
	}
	return uint64(n + since*backend.MaxFences), nil
}

// tokens creates the record, if somebody has deleted it, and returns it.
func (b *store) tokens(ctx context.Context) (*mvccpb.KeyValue, error) {
	resp, err := b.kv.Txn(ctx).Then(b.drawTokens()).Commit()
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	return drawn(resp.Responses[0]), nil
}

// granted returns the grant of a lock, whose TTL was set by a request that was sent at a time. record may be nil.
func (b *store) granted(
	ctx context.Context, req backend.Request, h *holding, sent time.Time, record *mvccpb.KeyValue,
) (backend.Grant, error) {
	if record == nil {
		var err error
		if record, err = b.tokens(ctx); err != nil {
			return backend.Grant{}, err
		}
	}
	first, err := fence(record, h.revision)
	if err == nil && !strings.HasPrefix(string(record.Value), tokensVersion) {
		err = b.write(ctx, record, string(record.Value))
	}
	g := backend.Grant{Fence: first, Fences: req.Fences, Private: h, Sent: sent}
	if p := h.what(); p != nil {
		g.Fence, g.Fences, g.Permits = first+uint64(p.offset), 0, slices.Clone(p.permits)
	}
	return g, err
}

// RaiseFences implements inspect.FenceRaiser. A grant comes before it or after it, because etcd executes one
// transaction after the other. The entry of a waiter may be older than the record: somebody has deleted the record
// since, or the lock is that of a concurrency.Mutex, which needs none. The token of that waiter is below the value of
// the record. So the value is past the number by the tokens of all revisions before the record.
func (b *store) RaiseFences(ctx context.Context, past uint64) error {
	ctx, cancel, err := b.bounded(ctx, b.timeout)
	if err != nil {
		return err
	}
	defer cancel()
	for {
		record, err := b.tokens(ctx)
		if err != nil {
			return err
		}
		least := past + uint64(record.CreateRevision)*backend.MaxFences
		n, err := base(record)
		if err != nil || uint64(n) > least {
			return err
		}
		if err := b.write(ctx, record, strconv.FormatUint(least+1, 10)); err != nil {
			return err
		}
	}
}

// write gives the record another number, with the version, unless it has changed meanwhile.
func (b *store) write(ctx context.Context, record *mvccpb.KeyValue, n string) error {
	same := clientv3.Compare(clientv3.ModRevision(b.tokensName()), "=", record.ModRevision)
	_, err := b.kv.Txn(ctx).If(same).Then(clientv3.OpPut(b.tokensName(), tokensVersion+n)).Commit()
	if err != nil {
		return unavailable(ctx, err)
	}
	return nil
}
