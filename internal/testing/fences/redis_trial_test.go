package fences_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/internal/testing/redistest"
)

// writes matches a request to Redis that sets a balance, with a fence or without.
var writes = regexp.MustCompile(`(?s)MSET.*:balance|\r\nSET\r\n.*:balance`)

// TestLateHoldersOfRedis is TestLateHolders with accounts in a Redis.
func TestLateHoldersOfRedis(t *testing.T) {
	s := redisTrial(t, plan{}, payments(150))
	if s.lost() > 0 || s.invented() > 0 {
		t.Errorf("with fences: %v", s)
	}
	t.Logf("with fences: %v", s)
}

func TestLateHoldersOfRedisWithoutFences(t *testing.T) {
	for range 10 {
		if s := redisTrial(t, plan{Naive: true}, payments(400)); s.lost() > 0 {
			t.Logf("without fences: %v", s)
			return
		}
	}
	t.Error("no payment was lost")
}

func redisTrial(t *testing.T, p plan, payments int) *said {
	server := redistest.Start(t)
	r := newRelayOf(t, server.Socket(), writes.Match)
	p.Locks, p.Redis = "redis+goredis://"+redistest.Start(t).Addr(), r.Addr()
	s := trial(t, r, p, payments)
	for i := range accounts {
		if balance := server.Cmd(t, "GET", balanceOf(i)); balance != nil {
			var err error
			s.balances[i], err = strconv.Atoi(fmt.Sprint(balance))
			must(t, err)
		}
	}
	return s
}

func balanceOf(account int) string { return fmt.Sprintf("{account:%d}:balance", account) }

func (p *plan) payIntoRedis(d drivers.Driver, lease locker.Lease, account int) error {
	ctx := context.Background()
	fences, holds := fence.Redis{Driver: d}, fence.Of(lease)
	if !p.Naive {
		if err := fences.Enter(ctx, holds...); err != nil {
			return err
		}
	}
	replies, err := d.Do(ctx, drivers.Command{"GET", balanceOf(account)})
	if err != nil {
		return err
	}
	n := 0
	if text, ok := replies[0].(string); ok {
		if n, err = strconv.Atoi(text); err != nil {
			return err
		}
	}
	think()
	text := strconv.Itoa(n + 1)
	if !p.Naive {
		return fences.Write(ctx, holds, map[string]string{balanceOf(account): text})
	}
	replies, err = d.Do(ctx, drivers.Command{"SET", balanceOf(account), text})
	switch {
	case errors.Is(err, drivers.ErrNotSent):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", fence.ErrUnknown, err)
	case replies[0] != "OK":
		return fmt.Errorf("the server answers %v", replies[0])
	}
	return nil
}
