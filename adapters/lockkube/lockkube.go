package lockkube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/label"
)

const (
	// boundPart is the part of the TTL that a request may take, as that of the renewals of a locker.Client. A request
	// that hangs leaves the elector time for others before its RenewDeadline.
	boundPart = 6

	// lookBound limits a look at the lock, whose TTL is not known. It is a boundPart of client-go's LeaseDuration.
	lookBound = 2500 * time.Millisecond

	// tolerated is how many renewals in a row may come so late that the elector, if all others failed, would lead after
	// the end of the lease. A store or a process that was slow once is no reason to stop leading.
	tolerated = 2
)

// Lock is a resourcelock.Interface for one candidate. Create one with [New] for each elector or manager. All methods
// are safe for concurrent use.
type Lock struct {
	locker   locker.Locker
	key      string
	identity string

	writing sync.Mutex // held by Update; guards the following two
	idle    time.Time  // until when nothing is acquired, because the lease was lost; zero if it was not
	late    int        // how many renewals in a row were so late; see tolerated

	mu     sync.Mutex                        // guards the following; it is not held during requests
	lease  locker.Lease                      // nil before the first acquisition, and after a release
	record resourcelock.LeaderElectionRecord // of the last acquisition or renewal
}

// New returns a Lock for a candidate that leads while it holds the lock of key. All candidates need the same store, and
// the same key and prefix.
//
// identity is what client-go shows of the candidate. It has the form of a [locker.Label], at most 64 bytes, which the
// name of a pod has. If it is empty, it is the name of the host and the process ID, such as my-operator-x2x8z:1. It
// should be unique, so that people can tell candidates apart; who leads does not depend on it. With one that cannot be
// a label, Create and Update fail with an error that matches locker.ErrInvalid, which the elector logs.
func New(l locker.Locker, key, identity string) *Lock {
	if identity == "" {
		identity = label.Default
	}
	return &Lock{locker: l, key: key, identity: identity}
}

// Lease returns the lease while the candidate leads, for its fencing token and for [locker.Verify]. It returns false
// if the candidate does not lead. The elector extends and unlocks the lease; do not call its Extend and Unlock.
func (k *Lock) Lease() (locker.Lease, bool) {
	lease := k.last()
	return lease, lease != nil && lease.Err() == nil
}

// AwaitLoss is called by a leader, and returns why the lease was lost. The error matches locker.ErrLost. AwaitLoss
// returns before another candidate can lead, unless the store has lost the lock or somebody has taken it away; then it
// returns after the next renewal. When the Client begins to drain, it returns locker.ErrDraining while the lease is
// still held. It returns nil if the elector has released the lock, or when ctx ends before a loss. As a Runnable of a
// manager, it makes Start return after a loss, or when the Client drains.
func (k *Lock) AwaitLoss(ctx context.Context) error {
	lease := k.last()
	if lease == nil {
		return nil
	}
	var why error
	select {
	case <-lease.Done():
	case <-locker.Draining(k.locker):
		if ctx.Err() == nil {
			why = locker.ErrDraining
		}
	case <-ctx.Done():
	}
	if err := lease.Err(); errors.Is(err, locker.ErrLost) {
		why = err
	}
	if why != nil {
		return &locker.Error{Op: "hold", Key: k.key, Err: why}
	}
	return nil
}

// Get implements resourcelock.Interface. The record is the elector's own while the candidate leads. If the lock is
// free, it has no holder. Otherwise it has the label of the holder and lasts for the remaining time of the lock. It
// never has the identity of this candidate then, although another process may have the same one. Each look that finds
// the lock held makes another record, so that no elector takes it for expired.
//
// If the Locker cannot show who holds its locks, the record has no holder, either. The elector then tries to update it,
// and logs an error if the lock is held.
func (k *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, err := k.look(ctx)
	if err != nil {
		return nil, nil, err
	}
	raw, err := json.Marshal(record)
	return record, raw, err
}

// look returns the record of the lock.
func (k *Lock) look(ctx context.Context) (*resourcelock.LeaderElectionRecord, error) {
	if own, leads := k.own(); leads {
		return own, nil
	}
	now := time.Now()
	record := &resourcelock.LeaderElectionRecord{RenewTime: metav1.NewTime(now)}
	inspector, ok := locker.As[inspect.Inspector](k.locker)
	if !ok {
		return record, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	seen, err := inspector.Inspect(ctx, k.key)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, err
	}
	if err == nil && seen.State == inspect.Held { // otherwise the attempt to acquire it says more
		record.HolderIdentity = k.nameOf(seen)
		record.AcquireTime = metav1.NewTime(now.Add(-seen.Held))
		record.LeaseDurationSeconds = int(seen.Remaining/time.Second) + 1
	}
	return record, nil
}

// nameOf returns the identity of another holder.
func (k *Lock) nameOf(seen inspect.Inspection) string {
	switch seen.Label {
	case "":
		return "owner " + seen.Owner
	case k.identity: // an elector would take the record for its own
		return seen.Label + ", owner " + seen.Owner
	}
	return seen.Label
}

// Create implements resourcelock.Interface, as Update does.
func (k *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return k.Update(ctx, record)
}

// Update implements resourcelock.Interface. It acquires the lock, or extends the lease if the candidate has it, with
// the LeaseDuration of the record as its TTL. If the record has no holder, it releases the lock. nil means that the
// store has done so.
//
// When the lease was lost, Update fails for a LeaseDuration and a second, also if the lock is free: by then the elector
// has noticed the loss and stopped, because its RenewDeadline is shorter. It would lead on otherwise, as if nobody else
// had led meanwhile.
//
// Errors are those of TryLock, Extend and Unlock of package locker. An error matches locker.ErrLost after a loss, and
// locker.ErrInvalid if the LeaseDuration is too short: below a second, or so short that the elector may lead after the
// end of the lease.
func (k *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	if record.HolderIdentity == "" {
		return k.release(ctx)
	}
	lease, err := k.hold(ctx, time.Duration(record.LeaseDurationSeconds)*time.Second)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lease, k.record = lease, record
	return nil
}

// RecordEvent implements resourcelock.Interface. It does nothing: events are objects of the API server, and the elector
// logs the same.
func (*Lock) RecordEvent(string) {}

// Identity implements resourcelock.Interface.
func (k *Lock) Identity() string { return k.identity }

// Describe implements resourcelock.Interface. It returns the key.
func (k *Lock) Describe() string { return k.key }

// hold extends the lease by ttl, or acquires one. Call with writing held.
func (k *Lock) hold(ctx context.Context, ttl time.Duration) (locker.Lease, error) {
	bounded, cancel := context.WithTimeout(ctx, ttl/boundPart)
	defer cancel()
	if lease := k.last(); lease != nil {
		err := lease.Err()
		if err == nil {
			err = k.extend(ctx, bounded, lease, ttl)
		}
		ended := lease.Err()
		if ended == nil {
			return lease, err
		}
		now := time.Now()
		if k.idle.IsZero() {
			k.idle = now.Add(ttl + time.Second) // the record has whole seconds, and the LeaseDuration may have more
		}
		if now.Before(k.idle) {
			return nil, &locker.Error{Op: "extend", Key: k.key, Err: ended}
		}
	}
	// Nothing renews the lease but the elector: if it hangs, another candidate must lead.
	lease, err := k.locker.TryLock(bounded, k.key, locker.TTL(ttl), locker.NoRenewal(), locker.Label(k.identity))
	if err != nil {
		return nil, err
	}
	k.idle, k.late = time.Time{}, 0
	return lease, nil
}

// extend extends lease by ttl. ctx is that of the elector, which stops leading when it ends, and bounded is that of the
// request. Call with writing held.
func (k *Lock) extend(ctx, bounded context.Context, lease locker.Lease, ttl time.Duration) error {
	if k.late > tolerated {
		return &locker.Error{Op: "extend", Key: k.key, Err: fmt.Errorf("%w: the LeaseDuration of %v is not longer than "+
			"RenewDeadline, RetryPeriod and a request together: this candidate might lead after the end of its lease",
			locker.ErrInvalid, ttl)}
	}
	end, limited := ctx.Deadline()
	late := limited && end.After(lease.Until())
	if err := lease.Extend(bounded, locker.TTL(ttl)); err != nil {
		return err
	}
	if late {
		k.late++
	} else {
		k.late = 0
	}
	return nil
}

// release releases the lock. Call with writing held.
func (k *Lock) release(ctx context.Context) error {
	lease := k.last()
	if lease == nil {
		return &locker.Error{Op: "unlock", Key: k.key, Err: locker.ErrUnlocked}
	}
	k.idle = time.Time{} // the elector has stopped
	k.mu.Lock()
	k.lease = nil
	k.mu.Unlock()
	return lease.Unlock(ctx)
}

// last returns the last lease, which may have been lost, or nil.
func (k *Lock) last() locker.Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lease
}

// own returns the record of this candidate, and whether it leads.
func (k *Lock) own() (*resourcelock.LeaderElectionRecord, bool) {
	k.mu.Lock()
	lease, record := k.lease, k.record
	k.mu.Unlock()
	return &record, lease != nil && lease.Err() == nil // without mu, because this may notice a loss and call hooks
}
