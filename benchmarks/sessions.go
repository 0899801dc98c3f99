package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/single"
)

const ttl = 10 * time.Second

// session is a lock library with connections of its own, like one process.
type session interface {
	Lock(ctx context.Context, key string) (held, error)
	Close()
}

// held is a lock. Its adapters are one word long, so that they cost the contestants no allocation.
type held interface {
	Unlock(ctx context.Context) error
}

// opener makes sessions.
type opener func(addrs []string, l limits) (session, error)

// sessions makes n sessions.
func (o opener) sessions(n int, addrs []string, l limits) ([]session, func(), error) {
	var list []session
	end := func() {
		for _, s := range list {
			s.Close()
		}
	}
	for range n {
		s, err := o(addrs, l)
		if err != nil {
			end()
			return nil, nil, err
		}
		list = append(list, s)
	}
	return list, end, nil
}

// ---- this library

type lockerSession struct {
	client *locker.Client
	opts   []locker.Option
	end    func()
}

func (s *lockerSession) Lock(ctx context.Context, key string) (held, error) {
	lease, err := s.client.Lock(ctx, key, s.opts...)
	if err != nil {
		return nil, err
	}
	return lease, nil
}

func (s *lockerSession) Close() {
	_ = s.client.Close()
	s.end()
}

// ours is this library over one Redis.
func ours(client string, opts ...locker.Option) opener {
	return func(addrs []string, l limits) (session, error) {
		d, end, err := newDriver(client, addrs[0], l)
		if err != nil {
			return nil, err
		}
		return &lockerSession{single.New(d), opts, end}, nil
	}
}

// oursRedlock is this library over several.
func oursRedlock(client string) opener {
	return func(addrs []string, l limits) (session, error) {
		ds, end, err := forAll(addrs, func(addr string) (drivers.Driver, func(), error) {
			return newDriver(client, addr, l)
		})
		if err != nil {
			return nil, err
		}
		return redlockOver(ds, end)
	}
}

// forAll opens one T for each address. The function that it returns closes all of them.
func forAll[T any](addrs []string, open func(addr string) (T, func(), error)) (all []T, end func(), err error) {
	var ends []func()
	end = func() {
		for _, f := range ends {
			f()
		}
	}
	for _, addr := range addrs {
		one, f, err := open(addr)
		if err != nil {
			end()
			return nil, nil, err
		}
		all, ends = append(all, one), append(ends, f)
	}
	return all, end, nil
}

// redlockOver logs nothing, because a Redlock warns of a number of nodes that survives no failure.
func redlockOver(ds []drivers.Driver, end func(), opts ...redlock.Option) (session, error) {
	c := redlock.New(ds, append(opts, redlock.Logger(slog.New(slog.DiscardHandler)))...)
	return &lockerSession{c, nil, end}, nil
}

// ---- locks of this process: the fastest on this machine, without a network

type mutexSession struct{ sync.Locker }

func (m *mutexSession) Lock(context.Context, string) (held, error) {
	m.Locker.Lock()
	return m, nil
}

func (m *mutexSession) Unlock(context.Context) error {
	m.Locker.Unlock()
	return nil
}

func (*mutexSession) Close() {}

func shared() opener {
	m := &mutexSession{new(sync.Mutex)}
	return func([]string, limits) (session, error) { return m, nil }
}
