package main

import (
	"context"
	"fmt"
	"sync/atomic"

	rueidislib "github.com/redis/rueidis"
)

// The bare queue is the yardstick for a hand-over on this machine. A client that arrives queues. A release gives the
// lock to the first client in the queue and notifies it. That client comes for the lock. These are three round trips
// by bare rueidis, one of which carries a push. The bare queue has nothing else that a lock needs: a client that
// dies, leaves or misses a message stalls all others for ever.

const (
	bareEnqueue = `if redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then return 1 end
redis.call("RPUSH", KEYS[2], ARGV[1]) return 0`
	bareClaim = `if redis.call("GET", KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call("PEXPIRE", KEYS[1], ARGV[2])`
	bareHandover = `if redis.call("GET", KEYS[1]) ~= ARGV[1] then return 0 end
local next = redis.call("LPOP", KEYS[2])
if not next then return redis.call("DEL", KEYS[1]) end
redis.call("SET", KEYS[1], next, "PX", 2000)
redis.call("PUBLISH", next, "")
return 1`
)

type queueSession struct {
	client                   rueidislib.Client
	name                     string
	told                     chan struct{}
	enqueue, claim, handover string // SHA-1 of the scripts
	stop                     context.CancelFunc
}

var queueSessions atomic.Int64

// rawQueue opens a client, with a subscription of its own.
func rawQueue(addrs []string, l limits) (session, error) {
	c, err := newRueidis(addrs[0], l)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &queueSession{
		client: c, name: fmt.Sprintf("bare:%d", queueSessions.Add(1)), told: make(chan struct{}, 1), stop: stop,
	}
	for sha, script := range map[*string]string{&s.enqueue: bareEnqueue, &s.claim: bareClaim, &s.handover: bareHandover} {
		if *sha, err = c.Do(ctx, c.B().ScriptLoad().Script(script).Build()).ToString(); err != nil {
			s.Close()
			return nil, err
		}
	}
	ready := make(chan struct{})
	ended := make(chan error, 1)
	hooks := func(m rueidislib.PubSubSubscription) {
		if m.Kind == "subscribe" {
			close(ready)
		}
	}
	go func() {
		ended <- c.Receive(rueidislib.WithOnSubscriptionHook(ctx, hooks), c.B().Subscribe().Channel(s.name).Build(),
			func(rueidislib.PubSubMessage) { s.told <- struct{}{} })
	}()
	select {
	case <-ready:
		return s, nil
	case err := <-ended:
		s.Close()
		return nil, err
	}
}

func (s *queueSession) run(ctx context.Context, sha, key string, args ...string) (bool, error) {
	cmd := s.client.B().Evalsha().Sha1(sha).Numkeys(2).Key(key, key+":queue").Arg(args...).Build()
	n, err := s.client.Do(ctx, cmd).AsInt64()
	return n == 1, err
}

func (s *queueSession) Lock(ctx context.Context, key string) (held, error) {
	got, err := s.run(ctx, s.enqueue, key, s.name, ttlMillis)
	if err != nil || got {
		return &queueHeld{s, key}, err
	}
	select {
	case <-s.told:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	switch got, err = s.run(ctx, s.claim, key, s.name, ttlMillis); {
	case err != nil:
		return nil, err
	case !got:
		return nil, fmt.Errorf("%s was granted, and is gone", key)
	}
	return &queueHeld{s, key}, nil
}

type queueHeld struct {
	session *queueSession
	key     string
}

func (h *queueHeld) Unlock(ctx context.Context) error {
	released, err := h.session.run(ctx, h.session.handover, h.key, h.session.name)
	if err == nil && !released {
		err = fmt.Errorf("%s was not held", h.key)
	}
	return err
}

func (s *queueSession) Close() {
	s.stop()
	s.client.Close()
}
