package etcdlock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/etcdlock"
	"github.com/golocker/locker/internal/clientwait"
)

// seat is an entry of a group, as the judge reads it.
type seat struct {
	token, from string
	kind        backend.Kind
	n, weight   int
	offset      int
	tries       bool
	permits     []int
	created     int64
	kept        bool
}

// inWay reports whether the two exclude each other.
func (a *seat) inWay(b *seat) bool {
	if a.kind == backend.Permit {
		return slices.ContainsFunc(a.permits, func(i int) bool { return slices.Contains(b.permits, i) })
	}
	own := a.from != "" && a.from == b.token || b.from != "" && b.from == a.token
	return a.kind.Excludes(b.kind) && !own
}

// history judges all that has happened to a group, as etcd itself tells it, transaction by transaction.
type history struct {
	t       testing.TB
	dir     string
	held    map[string]*seat // by name
	waiting map[string]*seat
	granted map[string]*seat // by owner value, for good
}

// judge reads the history of a group from the beginning.
func (s *store) judge(key string) *history {
	s.t.Helper()
	h := &history{
		t: s.t, dir: s.prefix + key + "/", held: map[string]*seat{}, waiting: map[string]*seat{},
		granted: map[string]*seat{},
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	now, err := s.direct.Get(ctx, h.dir, clientv3.WithPrefix())
	s.must(err)
	_, err = s.direct.Put(ctx, h.dir+"end", "") // so that there is a last event
	s.must(err)
	_, err = s.direct.Delete(ctx, h.dir+"end")
	s.must(err)
	var step []*clientv3.Event
	for resp := range s.direct.Watch(ctx, h.dir, clientv3.WithPrefix(), clientv3.WithRev(1)) {
		s.must(resp.Err())
		for _, e := range resp.Events {
			if len(step) > 0 && step[0].Kv.ModRevision != e.Kv.ModRevision {
				h.step(step)
				step = nil
			}
			if e.Kv.ModRevision > now.Header.Revision {
				return h
			}
			if string(e.Kv.Key) == h.dir+"end" { // of an earlier judge
				continue
			}
			step = append(step, e)
		}
	}
	s.t.Fatal("the history has no end")
	return nil
}

// read reads an entry.
func (h *history) read(kv *mvccpb.KeyValue) (name string, s *seat) {
	h.t.Helper()
	name = strings.TrimPrefix(string(kv.Key), h.dir)
	text, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Value), "|1 "), "|")
	f := strings.Split(text, " ")
	if len(f) != 8 {
		h.t.Fatalf("%s has the value %q", kv.Key, kv.Value)
	}
	number := func(i int) int {
		n, err := strconv.Atoi(f[i])
		if err != nil {
			h.t.Fatalf("%s has the value %q", kv.Key, kv.Value)
		}
		return n
	}
	s = &seat{
		token: strings.Trim(name, "%"), from: f[7], kind: backend.Kind(number(0)), n: number(1), weight: number(2),
		offset: number(4), tries: number(5) != 0, created: kv.CreateRevision, kept: strings.HasSuffix(name, "%"),
	}
	for _, part := range strings.Split(f[6], ",") {
		var low, high int
		switch n, _ := fmt.Sscanf(part, "%d-%d", &low, &high); n {
		case 1:
			s.permits = append(s.permits, low)
		case 2:
			for i := low; i <= high; i++ {
				s.permits = append(s.permits, i)
			}
		}
	}
	return name, s
}

// step judges one transaction.
func (h *history) step(events []*clientv3.Event) {
	h.t.Helper()
	before := map[string]*seat{} // who waited before it
	for name, w := range h.waiting {
		before[name] = w
	}
	var fresh []*seat
	left := map[string]*seat{}
	for _, e := range events {
		name := strings.TrimPrefix(string(e.Kv.Key), h.dir)
		if e.Type == clientv3.EventTypeDelete {
			if old := h.held[name]; old != nil {
				left[old.token] = old
			}
			delete(h.held, name)
			delete(h.waiting, name)
			continue
		}
		name, s := h.read(e.Kv)
		switch old := h.held[name]; {
		case strings.HasPrefix(name, "%"):
			h.waiting[name] = s
			continue
		case e.Kv.Version == 1:
			fresh = append(fresh, s)
		case s.kind != old.kind && s.kind != backend.Shared:
			h.t.Errorf("%d: %s was %v, and becomes %v", e.Kv.ModRevision, name, old.kind, s.kind)
		}
		h.held[name] = s
	}
	h.overlaps(events[0].Kv.ModRevision)
	slices.SortFunc(fresh, func(a, b *seat) int { return cmp.Compare(a.offset, b.offset) })
	for i, s := range fresh {
		if s.kept {
			if old := left[s.token]; old == nil || old.kind != s.kind || !slices.Equal(old.permits, s.permits) {
				h.t.Errorf("%+v is kept of %+v", s, old)
			}
			continue
		}
		h.granted[s.token] = s
		if i > 0 && fresh[i-1].offset == s.offset {
			h.t.Errorf("%+v has the token of %+v", s, fresh[i-1])
		}
		if s.kind == backend.Permit && (len(s.permits) != s.weight || slices.Max(s.permits) >= s.n) {
			h.t.Errorf("%+v was granted", s)
		}
		h.overtakes(s, before)
	}
}

// overlaps fails if two hold what only one may hold.
func (h *history) overlaps(revision int64) {
	h.t.Helper()
	var all []*seat
	for _, s := range h.held {
		for _, other := range all {
			if s.inWay(other) {
				h.t.Errorf("%d: %+v is held beside %+v", revision, s, other)
			}
		}
		all = append(all, s)
	}
}

// overtakes fails if a waiter that was there before still waits. An upgrade passes all, and may come while another
// grant is on its way. A waiter for an upgrade whose lock has ended waits for nothing, and a caller that tries does not
// wait.
func (h *history) overtakes(s *seat, before map[string]*seat) {
	h.t.Helper()
	came := int64(1 << 62)
	if w := before["%"+s.token]; w != nil {
		came = w.created
	}
	for name, w := range h.waiting {
		passes := w.tries || s.from != "" || w.from != "" || s.kind == backend.Shared && w.kind == backend.Upgradeable
		if before[name] != nil && w.created < came && !passes {
			h.t.Errorf("%+v was served before %+v", s, w)
		}
	}
}

// crowds lets many callers of some Clients come and go, also while answers are lost. etcd itself tells what has
// happened.
func crowds(t *testing.T, s *store, key string) {
	var bs []*etcdlock.Backend
	for range 4 {
		bs = append(bs, s.opened())
	}
	rounds, callers := 12, 12
	if testing.Short() {
		rounds = 4
	}
	type told struct {
		token   string
		permits []int
	}
	var mu sync.Mutex
	var grants []told
	acquire := func(b *etcdlock.Backend, req backend.Request) (backend.Request, bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var g backend.Grant
		var err error
		switch rand.IntN(8) {
		case 0, 1:
			g, err = b.Acquire(ctx, req)
		case 2: // it leaves, perhaps just when it is served
			leaving, leave := context.WithTimeout(ctx, time.Duration(rand.IntN(20))*time.Millisecond)
			defer leave()
			ctx = leaving
			fallthrough
		default:
			wait, _ := clientwait.New(ctx, locker.Patience(time.Minute))
			g, err = b.Queue(ctx, req, wait)
		}
		if err != nil {
			if !errors.Is(err, locker.ErrHeld) && !errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, locker.ErrNotHeld) {
				t.Errorf("%v: %v", req.Group, err)
			}
			return req, false
		}
		if req.Private = g.Private; g.Token != "" {
			req.Token = g.Token
		}
		mu.Lock()
		defer mu.Unlock()
		grants = append(grants, told{req.Token, g.Permits})
		return req, true
	}
	release := func(b *etcdlock.Backend, req backend.Request) {
		if rand.IntN(30) == 0 {
			req.Keep = time.Second
		}
		if err := b.Release(t.Context(), req); err != nil && !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("Release of %v: %v", req.Group, err)
		}
	}
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			b := bs[i%len(bs)]
			for range rounds {
				if i == 0 {
					s.relay.Lose(1)
				}
				req := permits(3+rand.IntN(2), 1+rand.IntN(3))
				if key == locksOf {
					req = aLock([]backend.Kind{backend.Shared, backend.Shared, backend.Upgradeable, backend.Exclusive}[rand.IntN(4)])
				}
				req, ok := acquire(b, req)
				if !ok {
					continue
				}
				switch {
				case req.Group.Kind == backend.Exclusive && rand.IntN(3) == 0:
					req.Group = &backend.Group{Kind: backend.Shared}
					_ = b.Extend(t.Context(), req)
				case req.Group.Kind == backend.Upgradeable && rand.IntN(2) == 0:
					up := aLock(backend.Exclusive)
					up.Group.From = req.Token
					if up, ok = acquire(b, up); ok {
						release(b, up)
					}
				case rand.IntN(2) == 0:
					_ = b.Extend(t.Context(), req)
				}
				release(b, req)
			}
		})
	}
	all.Wait()
	until(t, "the group is empty", func() bool { return len(s.left()) == 0 })
	h := s.judge(key)
	for _, g := range grants {
		if was := h.granted[g.token]; was == nil || !slices.Equal(was.permits, g.permits) {
			t.Errorf("a caller was told that it has %v, and etcd has granted %+v", g.permits, was)
		}
	}
	if len(grants) < callers {
		t.Errorf("only %d grants", len(grants))
	}
}

// A caller that asks once gets what is free, however many ask at the same moment, and without reading the group again
// for each of the others.
func grantsAllThatTry(t *testing.T, s *store) {
	for _, tt := range []struct {
		callers int
		ask     func() backend.Request
	}{
		{300, func() backend.Request { return permits(1024, 1) }},
		{150, func() backend.Request { return aLock(backend.Shared) }},
	} {
		ask := func() backend.Request {
			req := tt.ask()
			req.TTL = time.Hour
			return req
		}
		var sent atomic.Int64
		var bs []*etcdlock.Backend
		for range 8 {
			k := &leaseBook{before: func(req any) {
				if _, ok := req.(*pb.TxnRequest); ok {
					sent.Add(1)
				}
			}}
			b := etcdlock.NewBackend(k.client(s), etcdlock.Prefix(s.prefix), etcdlock.Timeout(time.Minute))
			defer func() { s.must(b.Close()) }()
			bs = append(bs, b)
		}
		held := []backend.Request{s.takes(bs[0], ask())} // a group that is empty costs one step
		key := held[0].Key
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range tt.callers {
			all.Go(func() {
				req := ask()
				g, err := bs[i%len(bs)].Acquire(t.Context(), req)
				if err != nil {
					t.Errorf("one of %d callers that ask for free places of %s: %v", tt.callers, key, err)
					return
				}
				req.Private = g.Private
				mu.Lock()
				defer mu.Unlock()
				held = append(held, req)
			})
		}
		all.Wait()
		if n := sent.Load(); n > int64(15*tt.callers) {
			t.Errorf("%d callers that ask for free places of %s made %d transactions", tt.callers, key, n)
		}
		for i, req := range held {
			all.Go(func() {
				if err := bs[i%len(bs)].Release(t.Context(), req); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		s.judge(key)
	}
}
