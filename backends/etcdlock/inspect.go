package etcdlock

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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
		if owner != nil && isGrouped(owner) {
			seen, _, err = b.inspectGroup(ctx, key, "")
			return seen, err
		}
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
	case isGrouped(owner):
		return inspect.Inspection{State: inspect.Held}, owner, nil
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
	case entry != nil && isGrouped(entry):
		return b.forceEntry(ctx, key, owner)
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

// outdated reports whether a leader of a version that stood still, and does not know yet that there is another one,
// always ends the leases that seem over to it (etcd-io/etcd#15247). Later versions do it less often.
func outdated(version string) bool {
	var major, minor, patch int
	n, _ := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch)
	switch {
	case n < 3:
		return false
	case major != 3:
		return major < 3
	case minor == 4:
		return patch < 31
	case minor == 5:
		return patch < 13
	}
	return minor < 4
}

// status asks one member about itself, over a connection of its own. The member needs no other member for the answer.
func (b *store) status(ctx context.Context, endpoint string) (*pb.StatusResponse, error) {
	wire, err := b.client.Dial(endpoint)
	if err != nil {
		return nil, err
	}
	defer wire.Close()
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if err := b.logins.begin(ctx); err != nil {
		return nil, unavailable(ctx, err)
	}
	token, member := b.logins.current(), pb.NewMaintenanceClient(wire)
	s, err := member.Status(ctx, &pb.StatusRequest{})
	if b.logins != nil && stale(err) {
		if err = b.logins.renew(ctx, token); err == nil {
			s, err = member.Status(ctx, &pb.StatusRequest{})
		}
	}
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	return s, nil
}

// judge says what a member's status means for locks.
func judge(endpoint string, s *pb.StatusResponse) (found []inspect.Finding) {
	add := func(check string, level inspect.Level, fix, format string, args ...any) {
		found = append(found, inspect.Finding{
			Check: check, Level: level, Text: endpoint + ": " + fmt.Sprintf(format, args...), Fix: fix,
		})
	}
	if s.Header.GetClusterId() == 0 {
		add("server", inspect.Fail, "give the addresses of an etcd, or take another store",
			"it says that it is etcd %s, and belongs to no cluster, so it is a server that speaks the protocol of etcd, such "+
				"as kine, and no lock is granted", s.Version)
		return found
	}
	if outdated(s.Version) {
		add("version", inspect.Warn, "upgrade to 3.4.31, 3.5.13, 3.6 or later", "etcd %s: a leader that stood still ends "+
			"leases that were renewed when it goes on: waiters lose their places, and holders of etcd's own locks the lock",
			s.Version)
	} else {
		add("version", inspect.OK, "", "etcd %s", s.Version)
	}
	if s.Leader == 0 {
		add("leader", inspect.Fail, "start the other members, and check the network between them",
			"it knows no leader: it does not reach a majority of the members, and refuses requests")
	}
	if s.IsLearner {
		add("role", inspect.Fail, "promote it with etcdctl member promote, or remove its address",
			"it is a learner, which refuses requests")
	}
	alarms := strings.Join(s.Errors, " ")
	switch share := float64(s.DbSize) / float64(max(1, s.DbSizeQuota)); {
	case strings.Contains(alarms, "NOSPACE"):
		add("space", inspect.Fail, whatToDo(rpctypes.ErrNoSpace), "the alarm NOSPACE is on: no lock is granted or extended")
	case s.DbSizeQuota > 0 && share > 0.8:
		add("space", inspect.Warn, "compact and defragment etcd, or raise its quota (--quota-backend-bytes)",
			"the database has %.0f %% of its quota; at 100 %%, no lock is granted or extended", 100*share)
	}
	if strings.Contains(alarms, "CORRUPT") {
		add("data", inspect.Fail, "see https://etcd.io/docs/latest/op-guide/data_corruption",
			"the alarm CORRUPT is on: the members' data differ")
	}
	return found
}

// Examine implements [inspect.Examiner]. It asks each member that the client knows about itself, and one of them about
// the cluster.
func (b *store) Examine(ctx context.Context) []inspect.Finding {
	if b.unfit != nil {
		return []inspect.Finding{{Check: "client", Level: inspect.Fail, Text: b.unfit.Error(), Fix: "see the error"}}
	}
	endpoints := b.client.Endpoints()
	answers, errs := make([]*pb.StatusResponse, len(endpoints)), make([]error, len(endpoints))
	var all sync.WaitGroup
	for i, e := range endpoints {
		all.Go(func() { answers[i], errs[i] = b.status(ctx, e) })
	}
	all.Wait()
	var found []inspect.Finding
	up, clusters := 0, map[uint64]bool{}
	for i, e := range endpoints {
		if errs[i] == nil {
			up++
			clusters[answers[i].Header.GetClusterId()] = true
			found = append(found, judge(e, answers[i])...)
		}
	}
	for i, e := range endpoints {
		if errs[i] != nil {
			level := inspect.Fail
			if up > len(endpoints)/2 {
				level = inspect.Warn
			}
			found = append(found, inspect.Finding{Check: "member", Level: level, Text: e + ": " + errs[i].Error(),
				Fix: "start it, and check the address and the network, unless the error says what to do"})
		}
	}
	if len(clusters) > 1 {
		found = append(found, inspect.Finding{Check: "cluster", Level: inspect.Fail,
			Text: "the addresses are those of different clusters, so locks do not exclude each other",
			Fix:  "give the addresses of one cluster"})
	}
	if up > 0 {
		found = append(found, b.size(ctx, len(endpoints))...)
	}
	return found
}

// size judges how many members there are, given how many addresses the client has. It is silent if the user may not
// know.
func (b *store) size(ctx context.Context, addresses int) (found []inspect.Finding) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	list, err := b.client.MemberList(ctx)
	if err != nil {
		return nil
	}
	voters := 0
	for _, m := range list.Members {
		if !m.IsLearner {
			voters++
		}
	}
	f := inspect.Finding{Check: "members", Level: inspect.Warn}
	switch {
	case voters == 1:
		f.Level, f.Text = inspect.OK, "1: no lock is granted while it is down"
	case voters == 2:
		f.Text = "2: etcd survives no failure of either"
		f.Fix = "run three or five members on machines that do not fail together"
	case addresses < voters:
		f.Text = fmt.Sprintf("%d, and the client has the addresses of %d", voters, addresses)
		f.Fix = "give the addresses of all, so that the client survives the failure of those"
	default:
		f.Level, f.Text = inspect.OK, fmt.Sprintf("%d, of which %d may fail", voters, (voters-1)/2)
	}
	return append(found, f)
}

// auditAgain is the pause before members are asked again that did not answer.
const auditAgain = time.Minute

// audit logs a warning for each member that is not fit for locks, until each has answered once.
func (b *store) audit(logger *slog.Logger) {
	todo := b.client.Endpoints()
	for {
		var silent []string
		for _, e := range todo {
			s, err := b.status(b.open, e)
			if err != nil {
				silent = append(silent, e)
				continue
			}
			for _, f := range judge(e, s) {
				if f.Level != inspect.OK {
					logger.Warn("locker: a member of etcd weakens a promise: "+f.Text, "advice", f.Fix)
				}
			}
		}
		if todo = silent; len(todo) == 0 {
			return
		}
		select {
		case <-time.After(auditAgain):
		case <-b.open.Done():
			return
		}
	}
}
