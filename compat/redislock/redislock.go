package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/golocker/locker"
	"github.com/golocker/locker/compat/internal/retries"
	"github.com/golocker/locker/inspect"
)

var (
	// ErrNotObtained means that somebody else has the lock, or that it was lost before a Refresh.
	ErrNotObtained = errors.New("redislock: not obtained")

	// ErrLockNotHeld means that the lock was lost, or released, before Release was called.
	ErrLockNotHeld = errors.New("redislock: no longer held")
)

// RedisClient is a client of go-redis: a *redis.Client, a *redis.ClusterClient, or a type of the program that embeds
// one of them. What such a type overrides is not called, because locks use the client that it embeds. With another
// client, such as a *redis.Ring, Obtain fails with the reason.
type RedisClient = redis.UniversalClient

// Client obtains locks on one Redis server, or on a Redis Cluster.
type Client struct{ locker *locker.Client }

// New returns a Client that uses client, which stays the caller's. Clients of the same client are cheap.
func New(client RedisClient) *Client { return &Client{lockerOf(client)} }

// Locker returns the Client behind the locks, for code that has moved. Locks of the same name exclude each other,
// whichever way they are acquired. It is shared by all that use the same client of go-redis, and must not be closed.
// bsm/redislock has no such method.
func (c *Client) Locker() *locker.Client { return c.locker }

// Options are the options of [Client.Obtain]. nil is the same as none.
type Options struct {
	// RetryStrategy says how long Obtain waits. nil: it makes one attempt.
	RetryStrategy RetryStrategy

	// Metadata is kept with the lock, as its label: locker inspect shows it, and so do errors of package locker. It is a
	// text of at most 64 bytes; see locker.Label. Without it, the label names the host and the process.
	Metadata string
}

// Obtain is New(client).Obtain.
func Obtain(ctx context.Context, client RedisClient, key string, ttl time.Duration, opt *Options) (*Lock, error) {
	return New(client).Obtain(ctx, key, ttl, opt)
}

// Obtain acquires the lock of key for ttl, which must be between locker.MinTTL, 10 ms, and locker.MaxTTL, a day. The
// lock is not renewed.
//
// With a RetryStrategy, Obtain waits for as long as that goes on, or until ctx ends. If ctx has no deadline, it waits
// for ttl at most. Meanwhile the caller is in the queue, so it gets the lock in its turn as soon as the holder releases
// it.
//
// The error is ErrNotObtained if somebody else has the lock. If ctx has ended meanwhile, it also matches ctx's error.
// If the server does not answer, it matches locker.ErrUnavailable, and is returned at once. If an argument cannot be
// used, it matches locker.ErrInvalid.
func (c *Client) Obtain(ctx context.Context, key string, ttl time.Duration, opt *Options) (*Lock, error) {
	if opt == nil {
		opt = &Options{}
	}
	strategy := opt.RetryStrategy
	if strategy == nil {
		strategy = NoRetry()
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ttl)
		defer cancel()
	}
	// Without the last option, locks could share a token.
	options := []locker.Option{locker.TTL(ttl), locker.NoRenewal(), locker.NoLocalHandover()}
	if opt.Metadata != "" {
		options = append(options, locker.Label(opt.Metadata))
	}
	lease, err := retries.Call{
		Try: func(ctx context.Context) (locker.Lease, error) { return c.locker.TryLock(ctx, key, options...) },
		Wait: func(ctx context.Context) (locker.Lease, error) {
			return c.locker.Lock(ctx, key, options...)
		},
		Next: func() (time.Duration, bool) {
			d := strategy.NextBackoff()
			return d, d > 0
		},
		Again: isTaken,
	}.Acquire(ctx)
	switch {
	case err == nil:
		return &Lock{c, lease, opt.Metadata}, nil
	case !isTaken(err):
		return nil, err
	case ctx.Err() != nil:
		return nil, errors.Join(ErrNotObtained, ctx.Err())
	case errors.Is(err, locker.ErrForeignKey):
		return nil, fmt.Errorf("%w: %w", ErrNotObtained, err)
	}
	return nil, ErrNotObtained // as it is, because programs compare it by ==
}

// isTaken reports whether something else is under the key.
func isTaken(err error) bool {
	return errors.Is(err, locker.ErrHeld) || errors.Is(err, locker.ErrForeignKey)
}

// Lock is a lock that was obtained. It ends after its TTL unless it is refreshed. It is safe for concurrent use.
type Lock struct {
	*Client
	lease    locker.Lease
	metadata string
}

// Key returns the name of the lock, which is also its key in Redis.
func (l *Lock) Key() string { return l.lease.Key() }

// Keys returns the name of the lock, which has one key.
func (l *Lock) Keys() []string { return []string{l.Key()} }

// Token returns the owner value, which is random. Whoever knows it can release the lock.
func (l *Lock) Token() string { return l.lease.Token() }

// Metadata returns the metadata of the options.
func (l *Lock) Metadata() string { return l.metadata }

// Lease returns the lease of the lock, for code that has moved: it has a fencing token, and tells when the lock is
// lost. bsm/redislock has no such method.
func (l *Lock) Lease() locker.Lease { return l.lease }

// TTL asks the server for how long the lock will last. It returns 0 if the lock was lost or released.
func (l *Lock) TTL(ctx context.Context) (time.Duration, error) {
	switch {
	case l == nil:
		return 0, ErrLockNotHeld
	case l.lease.Err() != nil:
		return 0, nil //nolint:nilerr // that is the answer
	}
	seen, err := l.locker.Inspect(ctx, l.Key())
	if err != nil || seen.State != inspect.Held || !strings.HasPrefix(l.Token(), seen.Owner) {
		return 0, err
	}
	return seen.Remaining, nil
}

// Refresh makes the lock last for ttl from now, if it does not last for longer already: it shortens nothing. If the
// lock was lost or released, the error is ErrNotObtained. If the server does not answer, Refresh tries again as the
// RetryStrategy of the options says, until ctx ends, or the ttl is over if ctx has no deadline. It returns the last
// error of the server then, joined with that of the context if that has ended.
func (l *Lock) Refresh(ctx context.Context, ttl time.Duration, opt *Options) error {
	if l == nil {
		return ErrNotObtained
	}
	strategy := NoRetry()
	if opt != nil && opt.RetryStrategy != nil {
		strategy = opt.RetryStrategy
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ttl)
		defer cancel()
	}
	for {
		err := l.lease.Extend(ctx, locker.TTL(ttl))
		switch {
		case err == nil, errors.Is(err, locker.ErrInvalid):
			return err
		case errors.Is(err, locker.ErrLost), errors.Is(err, locker.ErrUnlocked):
			return ErrNotObtained
		}
		pause := strategy.NextBackoff()
		if pause < 1 {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

// Release releases the lock. It also works if ctx has ended, and waits for a second at most. If the lock was lost or
// released before, or l is nil, the error is ErrLockNotHeld. If it matches locker.ErrUnavailable, the outcome is not
// known, and Release may be called again.
func (l *Lock) Release(ctx context.Context) error {
	if l == nil {
		return ErrLockNotHeld
	}
	err := l.lease.Unlock(ctx)
	if errors.Is(err, locker.ErrNotHeld) || errors.Is(err, locker.ErrUnlocked) {
		return ErrLockNotHeld
	}
	return err
}
