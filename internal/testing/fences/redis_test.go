package fences_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	_ "github.com/golocker/locker/drivers/all"
	_ "github.com/golocker/locker/drivers/valkeydriver"
	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/memory"
)

const (
	balanceKey = "{account:42}:balance"
	otherKey   = "{account:42}:other"
	fenceKey   = "{account:42}:fence"
)

// eachDriver runs the test on one Redis with each driver.
func eachDriver(t *testing.T, test func(t *testing.T, s *redistest.Server, fences fence.Redis)) {
	s := redistest.Start(t)
	for _, name := range drivers.Names() {
		t.Run(name, func(t *testing.T) {
			s.Cmd(t, "FLUSHALL")
			test(t, s, of(t, name, drivers.Config{Addr: s.Addr()}))
		})
	}
}

func of(t *testing.T, driver string, cfg drivers.Config) fence.Redis {
	t.Helper()
	d, err := drivers.Open(t.Context(), driver, cfg)
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return fence.Redis{Driver: d}
}

func goredis(t *testing.T, addr string) fence.Redis {
	t.Helper()
	return of(t, "goredis", drivers.Config{Addr: addr})
}

func value(s string) map[string]string { return map[string]string{balanceKey: s} }

func TestRedis(t *testing.T) {
	if got := drivers.Names(); !slices.Equal(got, []string{"goredis", "redigo", "rueidis", "valkey"}) {
		t.Fatal(got)
	}
	eachDriver(t, func(t *testing.T, s *redistest.Server, fences fence.Redis) {
		ctx := t.Context()
		is0 := func(key string, want any) {
			t.Helper()
			if got := s.Cmd(t, "GET", key); got != want {
				t.Errorf("%s has %v, want %v", key, got, want)
			}
		}
		t.Run("OnlyTheNewestHolderWrites", func(t *testing.T) {
			s.Cmd(t, "FLUSHALL")
			must(t, fences.Enter(ctx, hold(5)...))
			must(t, fences.Write(ctx, hold(5), value("a")))
			must(t, fences.Enter(ctx, hold(5)...)) // the same hold
			must(t, fences.Write(ctx, hold(5), value("b")))
			must(t, fences.Enter(ctx, hold(6)...))
			for _, err := range []error{fences.Write(ctx, hold(5), value("c")), fences.Enter(ctx, hold(5)...)} {
				is(t, err, fence.ErrStale)
				stale := new(fence.StaleError)
				if !errors.As(err, &stale) || stale.Resource != account || stale.Token != 5 || stale.Seen != 6 || stale.Ahead {
					t.Errorf("%+v", stale)
				}
			}
			is0(balanceKey, "b")
			must(t, fences.Write(ctx, hold(6), value("d")))
			is0(balanceKey, "d")
		})
		t.Run("WriteNeedsAnEntry", func(t *testing.T) {
			s.Cmd(t, "FLUSHALL")
			is(t, fences.Write(ctx, hold(5), value("a")), fence.ErrNotEntered)
			if got := s.Keys(t, "*"); len(got) != 0 {
				t.Errorf("there are %q", got)
			}
			must(t, fences.Enter(ctx, hold(4)...))
			is(t, fences.Write(ctx, hold(5), value("a")), fence.ErrNotEntered)
			is0(balanceKey, nil)
			is0(fenceKey, "4")
		})
		t.Run("TokensThatLuaHasNoNumberFor", func(t *testing.T) {
			for _, n := range []uint64{
				9, 10, 99, 100, 1<<53 - 1, 1 << 53, 1<<53 + 1, 1<<53 + 2, math.MaxInt64, 1 << 63, math.MaxUint64,
			} {
				s.Cmd(t, "FLUSHALL")
				must(t, fences.Enter(ctx, hold(n-1)...))
				must(t, fences.Write(ctx, hold(n-1), value("a")))
				is(t, fences.Write(ctx, hold(n), value("b")), fence.ErrNotEntered)
				must(t, fences.Enter(ctx, hold(n)...))
				is(t, fences.Enter(ctx, hold(n-1)...), fence.ErrStale)
				is(t, fences.Write(ctx, hold(n-1), value("c")), fence.ErrStale)
				must(t, fences.Write(ctx, hold(n), value("d")))
				is0(fenceKey, strconv.FormatUint(n, 10))
				is0(balanceKey, "d")
			}
		})
		t.Run("SetsAndDeletesInOneStep", func(t *testing.T) {
			s.Cmd(t, "FLUSHALL")
			must(t, fences.Enter(ctx, hold(5)...))
			odd := "a\x00\r\nb\xff"
			must(t, fences.Write(ctx, hold(5), map[string]string{balanceKey: odd, otherKey: ""}))
			is0(balanceKey, odd)
			is0(otherKey, "")
			must(t, fences.Write(ctx, hold(5), value("a"), otherKey, "{account:42}:never"))
			is0(otherKey, nil)
			must(t, fences.Write(ctx, hold(5), nil, balanceKey))
			must(t, fences.Write(ctx, hold(5), nil))
			if got := s.Keys(t, "*"); !slices.Equal(got, []string{fenceKey}) {
				t.Errorf("there are %q", got)
			}
			many := make(map[string]string)
			for i := range 1001 {
				many[fmt.Sprint("{account:42}:", i)] = "x"
			}
			is(t, fences.Write(ctx, hold(5), many), locker.ErrInvalid)
			delete(many, "{account:42}:0")
			must(t, fences.Write(ctx, hold(5), many))
			if got := s.Cmd(t, "DBSIZE"); got != int64(1001) {
				t.Errorf("%v keys", got)
			}
		})
		t.Run("SeveralResources", func(t *testing.T) {
			s.Cmd(t, "FLUSHALL")
			two := []fence.Hold{{Resource: "b", Token: 7}, {Resource: "a", Token: 5}}
			must(t, fences.Enter(ctx, two...))
			must(t, fences.Write(ctx, two, map[string]string{"{a}:x": "1", "{b}:x": "2"}))
			must(t, fences.Enter(ctx, fence.Hold{Resource: "a", Token: 6}))
			stale := new(fence.StaleError)
			err := fences.Write(ctx, two, map[string]string{"{a}:x": "3", "{b}:x": "4"})
			if !errors.As(err, &stale) || stale.Resource != "a" || stale.Token != 5 || stale.Seen != 6 {
				t.Error(err)
			}
			err = fences.Enter(ctx, two...)
			if !errors.As(err, &stale) || stale.Resource != "a" {
				t.Error(err)
			}
			must(t, fences.Enter(ctx, fence.Hold{Resource: "b", Token: 8}))
			two[1].Token = 6
			err = fences.Write(ctx, two, map[string]string{"{a}:x": "3", "{b}:x": "4"})
			if !errors.As(err, &stale) || stale.Resource != "b" || stale.Token != 7 || stale.Seen != 8 {
				t.Error(err)
			}
			is0("{a}:x", "1")
			is0("{b}:x", "2")
		})
		t.Run("AScriptOfTheProgram", func(t *testing.T) {
			s.Cmd(t, "FLUSHALL")
			must(t, fences.Enter(ctx, hold(5)...))
			for _, lua := range []string{
				"redis.call('INCRBY', KEYS[1], ARGV[1]) return {#KEYS, #ARGV, KEYS[1], ARGV[2], redis.call('GET', KEYS[1])}",
				"-- a comment\nredis.call('INCRBY', KEYS[1], ARGV[1])\n" +
					"return {#KEYS, #ARGV, KEYS[1], ARGV[2], redis.call('GET', KEYS[1])}",
			} {
				s.Cmd(t, "SET", balanceKey, "40")
				got, err := fences.Eval(ctx, hold(5), lua, []string{balanceKey}, "2", "two")
				want := []drivers.Reply{int64(1), int64(2), balanceKey, "two", "42"}
				if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%v, %v; want %v", got, err, want)
				}
				_, err = fences.Eval(ctx, hold(4), lua, []string{balanceKey}, "2", "two")
				is(t, err, fence.ErrStale)
				is0(balanceKey, "42")
			}
			if s.Knows(t, "FCALL") { // then scripts may have flags
				const flags = "#!lua flags=no-writes\n"
				if got, err := fences.Eval(ctx, hold(5), flags+"return #ARGV", nil, "one"); got != int64(1) || err != nil {
					t.Error(got, err)
				}
				_, err := fences.Eval(ctx, hold(4), flags+"return 1", nil)
				is(t, err, fence.ErrStale)
				if _, err := fences.Eval(ctx, hold(5), flags+"redis.call('DEL', KEYS[1])", []string{balanceKey}); err == nil {
					t.Error("the server did not see the flags")
				}
			}
			if got, err := fences.Eval(ctx, hold(5), "return #KEYS + #ARGV", nil); got != int64(0) || err != nil {
				t.Error(got, err)
			}
			if got, err := fences.Eval(ctx, hold(5), "return false", nil); got != nil || err != nil {
				t.Error(got, err)
			}
			var refusal drivers.ServerError
			_, err := fences.Eval(ctx, hold(5), "return {err = 'MINE it is'}", nil)
			if !errors.As(err, &refusal) || refusal.Code() != "MINE" || errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
			_, err = fences.Eval(ctx, hold(5), "\n\nerror('on the third line')", nil)
			if err == nil || !strings.Contains(err.Error(), ":3:") {
				t.Errorf("%v has another number of the line", err)
			}
		})
		t.Run("TheServerForgetsScripts", func(t *testing.T) {
			must(t, fences.Enter(ctx, hold(9)...))
			s.Cmd(t, "SCRIPT", "FLUSH")
			must(t, fences.Write(ctx, hold(9), value("a")))
			s.Cmd(t, "SCRIPT", "FLUSH")
			must(t, fences.Enter(ctx, hold(9)...))
		})
		t.Run("WhatIsNoFence", func(t *testing.T) {
			for _, was := range []string{"", "x", "5x", "-5", " 5", "5.0", "1e3", "99999999999999999999"} {
				s.Cmd(t, "SET", fenceKey, was)
				if err := fences.Enter(ctx, hold(5)...); err == nil || errors.Is(err, fence.ErrStale) {
					t.Errorf("%q: %v", was, err)
				}
				if err := fences.Write(ctx, hold(5), value("x")); err == nil {
					t.Errorf("%q: written", was)
				}
				is0(fenceKey, was)
			}
			// It is a number that people have written.
			s.Cmd(t, "SET", fenceKey, "005")
			is(t, fences.Write(ctx, hold(5), value("x")), fence.ErrNotEntered)
			is(t, fences.Enter(ctx, hold(4)...), fence.ErrStale)
			must(t, fences.Enter(ctx, hold(5)...))
			must(t, fences.Write(ctx, hold(5), value("y")))
			s.Cmd(t, "DEL", fenceKey)
			s.Cmd(t, "LPUSH", fenceKey, "5")
			for _, err := range []error{fences.Enter(ctx, hold(5)...), fences.Write(ctx, hold(5), value("x"))} {
				var refusal drivers.ServerError
				if !errors.As(err, &refusal) || refusal.Code() != "WRONGTYPE" {
					t.Error(err)
				}
			}
			is0(balanceKey, "y")
		})
		t.Run("AFenceDoesNotExpire", func(t *testing.T) {
			s.Cmd(t, "SET", fenceKey, "5", "PX", "60000")
			must(t, fences.Enter(ctx, hold(5)...))
			if got := s.Cmd(t, "PTTL", fenceKey); got != int64(-1) {
				t.Errorf("it expires in %v ms", got)
			}
		})
	})
}

// interrupted is a driver after whose every call something happens.
type interrupted struct {
	drivers.Driver
	after func()
}

func (d interrupted) Do(ctx context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	defer d.after()
	return d.Driver.Do(ctx, cmds...)
}

// What the next holder reads after it has entered stays as it is, wherever it enters while the former one writes.
func TestNobodyEntersBetweenCheckAndWrite(t *testing.T) {
	s := redistest.Start(t)
	next := goredis(t, s.Addr())
	calls := 0
	var read any
	fences := fence.Redis{Driver: interrupted{next.Driver, func() {
		calls++
		must(t, next.Enter(t.Context(), hold(5+uint64(calls))...))
		read = s.Cmd(t, "GET", balanceKey)
	}}}
	must(t, next.Enter(t.Context(), hold(5)...))
	err := fences.Write(t.Context(), hold(5), value("five"))
	if got := s.Cmd(t, "GET", balanceKey); err != nil || got != read || calls != 1 {
		t.Errorf("%v: the next holder has read %v, and now there is %v, after %d calls", err, read, got, calls)
	}
}

// The answer to a write is lost. Whoever writes again has written once.
func TestAnswerOfRedisIsLost(t *testing.T) {
	s := redistest.Start(t)
	r := newRelayOf(t, s.Socket(), func(b []byte) bool { return bytes.Contains(b, []byte("FENCED")) })
	for _, name := range drivers.Names() {
		t.Run(name, func(t *testing.T) {
			s.Cmd(t, "FLUSHALL")
			fences := of(t, name, drivers.Config{Addr: r.Addr()})
			must(t, fences.Enter(t.Context(), hold(5)...))
			lost := false
			r.Set(func() { r.lose = func() bool { lost = !lost; return lost } })
			is(t, fences.Write(t.Context(), hold(5), value("a")), fence.ErrUnknown)
			if got := s.Cmd(t, "GET", balanceKey); got != "a" {
				t.Errorf("written: %v", got)
			}
			r.Set(func() { r.lose = func() bool { return false } })
			must(t, fences.Write(t.Context(), hold(5), value("a")))
			r.Down()()
			closed := fences
			_ = closed.Driver.Close()
			if err := closed.Write(t.Context(), hold(5), value("b")); err == nil || errors.Is(err, fence.ErrUnknown) {
				t.Errorf("what was not sent: %v", err)
			}
		})
	}
}

// A failover loses what has happened last, fences and values alike. A late holder that the new master knows as the
// newest may write. But whoever has read on the old master writes nothing on the new one, until it has entered there.
func TestFailoverLosesFences(t *testing.T) {
	master := redistest.Start(t, "--save", "")
	replica := redistest.StartReplica(t, master)
	old, now := goredis(t, master.Addr()), goredis(t, replica.Addr())
	ctx := t.Context()
	must(t, old.Enter(ctx, hold(5)...))
	must(t, old.Write(ctx, hold(5), value("five")))
	var refusal drivers.ServerError
	replica.Follow(t, master)
	if err := now.Enter(ctx, hold(6)...); !errors.As(err, &refusal) || refusal.Code() != "READONLY" {
		t.Errorf("a replica: %v", err)
	}
	master.Cmd(t, "WAIT", "1", "10000")
	replica.Cmd(t, "REPLICAOF", "NO", "ONE")
	must(t, old.Enter(ctx, hold(6)...))
	must(t, now.Write(ctx, hold(5), value("five, late")))
	is(t, now.Write(ctx, hold(6), value("six")), fence.ErrNotEntered)
	must(t, now.Enter(ctx, hold(6)...))
	is(t, now.Write(ctx, hold(5), value("five, later")), fence.ErrStale)
	must(t, now.Write(ctx, hold(6), value("six")))
}

// After a change of stores, holders of the new one are told that the resource is ahead.
func TestRedisIsAheadOfTheStore(t *testing.T) {
	fences := goredis(t, redistest.Start(t).Addr())
	l := memory.New()
	t.Cleanup(func() { _ = l.Close() })
	lease, err := l.Lock(t.Context(), account)
	must(t, err)
	must(t, fences.Enter(t.Context(), hold(lease.Fence()+1000)...))
	stale := new(fence.StaleError)
	for _, err := range []error{
		fences.Enter(t.Context(), fence.Of(lease)...), fences.Write(t.Context(), fence.Of(lease), value("x")),
	} {
		if !errors.As(err, &stale) || !stale.Ahead {
			t.Error(err)
		}
	}
	must(t, lease.Unlock(t.Context()))
	if err := fences.Enter(t.Context(), fence.Of(lease)...); !errors.As(err, &stale) || stale.Ahead {
		t.Error(err)
	}
}

// A server that is full refuses whole steps.
func TestFullRedis(t *testing.T) {
	s := redistest.Start(t, "--maxmemory-policy", "noeviction")
	fences := goredis(t, s.Addr())
	must(t, fences.Enter(t.Context(), hold(5)...))
	must(t, fences.Write(t.Context(), hold(5), map[string]string{balanceKey: "a", otherKey: "a"}))
	s.Cmd(t, "CONFIG", "SET", "maxmemory", "1")
	for _, err := range []error{
		fences.Enter(t.Context(), hold(6)...),
		fences.Write(t.Context(), hold(5), value("b"), otherKey),
	} {
		var refusal drivers.ServerError
		if !errors.As(err, &refusal) || refusal.Code() != "OOM" {
			t.Error(err)
		}
	}
	s.Cmd(t, "CONFIG", "SET", "maxmemory", "0")
	for key, want := range map[string]string{fenceKey: "5", balanceKey: "a", otherKey: "a"} {
		if got := s.Cmd(t, "GET", key); got != want {
			t.Errorf("%s has %v", key, got)
		}
	}
}

// What the connection's user may do, as docs/fencing.md says.
func TestRightsOfAFence(t *testing.T) {
	s := redistest.Start(t)
	s.User(t, "payer", "on", ">pw", "~{account:*", "+eval", "+get", "+set", "+mset", "+del")
	fences := of(t, "redigo", drivers.Config{Addr: s.Addr(), Username: "payer", Password: "pw"})
	must(t, fences.Enter(t.Context(), hold(5)...))
	must(t, fences.Write(t.Context(), hold(5), value("a"), otherKey))
}

func TestRedisCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, name := range drivers.Reaching(drivers.RedisCluster) {
		t.Run(name, func(t *testing.T) {
			token := uint64(10 * (i + 1))
			fences := of(t, name, drivers.Config{Cluster: c.Addrs()})
			holds := []fence.Hold{{Resource: "a", Token: token}, {Resource: "b", Token: token}, {Resource: "c", Token: token}}
			must(t, fences.Enter(ctx, holds...))
			for _, h := range holds {
				must(t, fences.Write(ctx, []fence.Hold{h}, map[string]string{"{" + h.Resource + "}:x": "1", h.Resource: "2"}))
			}
			must(t, fences.Enter(ctx, fence.Hold{Resource: "b", Token: token + 1}))
			is(t, fences.Write(ctx, holds[1:2], map[string]string{"b": "3"}), fence.ErrStale)
			for _, err := range []error{
				fences.Write(ctx, holds[:1], map[string]string{"x": "1"}),
				fences.Write(ctx, holds[:1], map[string]string{"a": "1"}, "b"),
				fences.Write(ctx, holds[:2], nil),
			} {
				is(t, err, locker.ErrInvalid)
			}
		})
	}
	// A client of one server does not know that it is one of a cluster, but the server does.
	owner := c.Owner(t, c.Slot(t, "a"))
	err := goredis(t, owner.Addr()).Write(ctx, []fence.Hold{{Resource: "a", Token: 50}}, map[string]string{"x": "1"})
	var refusal drivers.ServerError
	if !errors.As(err, &refusal) || refusal.Code() != "CROSSSLOT" {
		t.Error(err)
	}
}

// What is refused before anything is sent.
func TestWhatRedisIsNotAsked(t *testing.T) {
	fences := fence.Redis{Driver: redistest.Late{}}
	for name, err := range map[string]error{
		"no driver":        fence.Redis{}.Write(t.Context(), hold(5), nil),
		"the fence itself": fences.Write(t.Context(), hold(5), map[string]string{fenceKey: "7"}),
		"deletes it":       fences.Write(t.Context(), hold(5), nil, fenceKey),
		"no hold":          fences.Enter(t.Context()),
		"no name":          fences.Enter(t.Context(), fence.Hold{Token: 5}),
	} {
		if !errors.Is(err, locker.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	is(t, fences.Write(t.Context(), []fence.Hold{{Resource: "r"}}, nil), fence.ErrNoToken)
}

// The scripts of docs/fencing.md for other clients.
func TestPageForOtherClientsOfRedis(t *testing.T) {
	page, err := os.ReadFile("../../../docs/fencing.md")
	must(t, err)
	blocks := strings.Split(string(page), "```lua\n")
	if len(blocks) != 3 {
		t.Fatalf("%d blocks", len(blocks)-1)
	}
	enter, _, _ := strings.Cut(blocks[1], "```")
	check, _, _ := strings.Cut(blocks[2], "```")
	s := redistest.Start(t)
	write := func(token string) error {
		_, err := s.Do("EVAL", check+"redis.call('SET', KEYS[2], ARGV[2])", 2, fenceKey, balanceKey, token, token)
		return err
	}
	if err := write("5"); err == nil || !strings.HasPrefix(err.Error(), "FENCED") {
		t.Errorf("not entered: %v", err)
	}
	last := ""
	for _, token := range []string{"9", "10", "9007199254740992", "9007199254740993", "18446744073709551615"} {
		for range 2 {
			if got := s.Cmd(t, "EVAL", enter, 1, fenceKey, token); got != token {
				t.Errorf("entering with %s: %v", token, got)
			}
		}
		must(t, write(token))
		if last != "" {
			if got := s.Cmd(t, "EVAL", enter, 1, fenceKey, last); got != token {
				t.Errorf("entering with %s after %s: %v", last, token, got)
			}
			if err := write(last); err == nil || !strings.HasPrefix(err.Error(), "FENCED") {
				t.Errorf("%s after %s: %v", last, token, err)
			}
		}
		last = token
	}
	n, err := strconv.ParseUint(last, 10, 64)
	must(t, err)
	must(t, goredis(t, s.Addr()).Write(t.Context(), hold(n), value("the package knows it, too")))
}
