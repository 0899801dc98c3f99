package etcdlock_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker/backend"
)

// seat is an entry of a group, as the judge reads it.
type seat struct {
	token, from string
	kind        backend.Kind
	n, weight   int
	offset      int
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
	if len(f) != 7 {
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
		token: strings.Trim(name, "%"), from: f[6], kind: backend.Kind(number(0)), n: number(1), weight: number(2),
		offset: number(4), created: kv.CreateRevision, kept: strings.HasSuffix(name, "%"),
	}
	for _, part := range strings.Split(f[5], ",") {
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

// overtakes fails if one who was there before waits on. An upgrade passes all, and may come while another grant is on
// its way. Whoever waits to upgrade what it has not any more, waits for nothing.
func (h *history) overtakes(s *seat, before map[string]*seat) {
	h.t.Helper()
	came := int64(1 << 62)
	if w := before["%"+s.token]; w != nil {
		came = w.created
	}
	for name, w := range h.waiting {
		passes := s.from != "" || w.from != "" || s.kind == backend.Shared && w.kind == backend.Upgradeable
		if before[name] != nil && w.created < came && !passes {
			h.t.Errorf("%+v was served before %+v", s, w)
		}
	}
}
