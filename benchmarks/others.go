package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis6 "github.com/go-redsync/redsync/v4/redis/goredis"
	redsyncgoredis7 "github.com/go-redsync/redsync/v4/redis/goredis/v7"
	redsyncgoredis8 "github.com/go-redsync/redsync/v4/redis/goredis/v8"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncredigo "github.com/go-redsync/redsync/v4/redis/redigo"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	redsyncvalkey "github.com/go-redsync/redsync/v4/redis/valkeygo"
	"github.com/redis/rueidis/rueidiscompat"
	"github.com/redis/rueidis/rueidislock"
	"github.com/valkey-io/valkey-go/valkeycompat"
)

// ---- redsync

type redsyncSession struct {
	*redsync.Redsync
	opts []redsync.Option
	end  func()
}

type redsyncHeld struct{ *redsync.Mutex }

func (s *redsyncSession) Lock(ctx context.Context, key string) (held, error) {
	m := s.NewMutex(key, s.opts...)
	for {
		err := m.LockContext(ctx)
		if err == nil {
			return redsyncHeld{m}, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err() // redsync returns only that it failed
		}
		if !errors.Is(err, redsync.ErrFailed) && !isTaken(err) {
			return nil, err
		}
	}
}

// isTaken: redsync has two errors that say that it has used up its tries.
func isTaken(err error) bool {
	all := errors.As(err, new(*redsync.ErrTaken))
	some := errors.As(err, new(*redsync.ErrNodeTaken))
	return all || some
}

func (h redsyncHeld) Unlock(ctx context.Context) error {
	ok, err := h.UnlockContext(ctx)
	if err == nil && !ok {
		err = errors.New("redsync: not released")
	}
	return err
}

func (s *redsyncSession) Close() { s.end() }

// ofRedsync is redsync over one Redis or several, with its defaults apart from the expiry.
func ofRedsync(client string, opts ...redsync.Option) opener {
	opts = append([]redsync.Option{redsync.WithExpiry(ttl)}, opts...)
	return func(addrs []string, l limits) (session, error) {
		pools, end, err := forAll(addrs, func(addr string) (redsyncredis.Pool, func(), error) {
			return redsyncPool(client, addr, l)
		})
		if err != nil {
			return nil, err
		}
		return &redsyncSession{redsync.New(pools...), opts, end}, nil
	}
}

// redsyncPool is redsync's driver over such a client.
func redsyncPool(client, addr string, l limits) (redsyncredis.Pool, func(), error) {
	switch client {
	case "goredis":
		c := newGoredis(addr, l)
		return redsyncgoredis.NewPool(c), func() { _ = c.Close() }, nil
	case "goredis v8":
		c := newGoredis8(addr, l)
		return redsyncgoredis8.NewPool(c), func() { _ = c.Close() }, nil
	case "goredis v7":
		c := newGoredis7(addr, l)
		return redsyncgoredis7.NewPool(c), func() { _ = c.Close() }, nil
	case "goredis v6":
		c := newGoredis6(addr, l)
		return redsyncgoredis6.NewPool(c), func() { _ = c.Close() }, nil
	case "redigo":
		p := newRedigo(addr, l)
		return redsyncredigo.NewPool(p), func() { _ = p.Close() }, nil
	case "rueidis":
		c, err := newRueidis(addr, l)
		if err != nil {
			return nil, nil, err
		}
		return redsyncrueidis.NewPool(rueidiscompat.NewAdapter(c)), c.Close, nil
	case "valkey-go":
		c, err := newValkey(addr, l)
		if err != nil {
			return nil, nil, err
		}
		return redsyncvalkey.NewPool(valkeycompat.NewAdapter(c)), c.Close, nil
	}
	return nil, nil, fmt.Errorf("no client %q", client)
}

// tuned makes redsync wait 1–11 ms between tries, not 50–250 ms, and never give up.
func tuned() []redsync.Option {
	return []redsync.Option{redsync.WithTries(1 << 30), redsync.WithRetryDelayFunc(func(int) time.Duration {
		return time.Millisecond + rand.N(10*time.Millisecond)
	})}
}

// ---- redislock

type redislockSession struct {
	*redislock.Client
	retry time.Duration // 0: one try
	end   func()
}

type redislockHeld struct{ *redislock.Lock }

func (s *redislockSession) Lock(ctx context.Context, key string) (held, error) {
	var opt *redislock.Options
	if s.retry > 0 {
		opt = &redislock.Options{RetryStrategy: redislock.LinearBackoff(s.retry)}
	}
	l, err := s.Obtain(ctx, key, ttl, opt)
	if err != nil {
		return nil, err
	}
	return redislockHeld{l}, nil
}

func (h redislockHeld) Unlock(ctx context.Context) error { return h.Release(ctx) }

func (s *redislockSession) Close() { s.end() }

func ofRedislock(retry time.Duration) opener {
	return func(addrs []string, l limits) (session, error) {
		c := newGoredis(addrs[0], l)
		return &redislockSession{redislock.New(c), retry, func() { _ = c.Close() }}, nil
	}
}

// ---- rueidislock

// rueidislockSession bounds calls that have no bound of their own. After an attempt that failed for another reason
// than a held lock, rueidislock can wait for an invalidation that never comes.
type rueidislockSession struct {
	rueidislock.Locker
	bound  context.Context
	cancel context.CancelFunc
}

type rueidislockHeld context.CancelFunc

func (s rueidislockSession) Lock(ctx context.Context, key string) (held, error) {
	if ctx.Done() == nil {
		ctx = s.bound
	}
	_, cancel, err := s.WithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	return rueidislockHeld(cancel), nil
}

func (s rueidislockSession) Close() {
	s.cancel()
	s.Locker.Close()
}

// Unlock returns when the key is deleted. It reports no error.
func (h rueidislockHeld) Unlock(context.Context) error {
	h()
	return nil
}

// ofRueidislock has one key instead of three, as its README advises for a single server. The client cache stays on,
// because its invalidations notify rueidislock that a lock is free.
func ofRueidislock(validity time.Duration) opener {
	return func(addrs []string, l limits) (session, error) {
		option := rueidisOption(addrs[0], l)
		option.DisableCache = false
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: option, KeyMajority: 1, NoLoopTracking: true,
			KeyValidity: validity, ExtendInterval: validity / 3, TryNextAfter: ttl,
		})
		if err != nil {
			return nil, fmt.Errorf("rueidislock: %w", err)
		}
		bound, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		return rueidislockSession{locker, bound, cancel}, nil
	}
}
