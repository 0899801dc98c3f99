package conformance

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker/backend"
)

// groupProperties are those of a backend that states backend.Capabilities.Groups.
var groupProperties = []property[Harness]{
	{
		"GroupHandsOn",
		"Permits that are released go to those that wait, in order, as far as each has room for all that it wants, and not " +
			"to one behind the first that has not.",
		"Permits that nobody is told of stay unused while callers wait, and a caller that wants many of them never gets " +
			"them if others are served before it.",
		groupHandsOn,
	},
	{
		"GroupOvertakesNobody",
		"Acquire of permits is refused while a caller waits for some in the queue, also if as many are free as it wants.",
		"A caller that waits for many permits waits for ever if newcomers take each one that is returned.",
		groupOvertakesNobody,
	},
	{
		"GroupTwiceIsGrantedOnce",
		"Acquire of permits that is executed twice for a token is granted the same permits twice, with one fencing token.",
		"Client libraries and proxies repeat requests that were not answered: the owner would have permits that it does " +
			"not know of, and nobody would return them.",
		groupTwiceIsGrantedOnce,
	},
}

// groupers makes n Backends for a fresh store, and skips the property unless they have groups of permits.
func groupers(t testing.TB, h Harness, n int) []backend.Backend {
	t.Helper()
	return stating(t, h, n, "Groups", func(can backend.Capabilities) bool { return can.Groups })
}

// stating makes n Backends for a fresh store, and skips the property unless they state a capability, which needs a
// queue.
func stating(
	t testing.TB, h Harness, n int, name string, stated func(can backend.Capabilities) bool,
) []backend.Backend {
	t.Helper()
	bs, _ := backends(t, h, n)
	if !stated(backend.Of(bs[0])) {
		t.Skipf("the Backend does not state %s: each place is a lock", name)
	}
	if _, ok := bs[0].(backend.Queuer); !ok {
		t.Fatalf("a Backend that states %s: expected a backend.Queuer, seen none", name)
	}
	return bs
}

// permitsOf is a request for weight of n permits.
func permitsOf(n, weight int) backend.Request {
	req := request("{k}#permits", longTTL)
	req.Group = &backend.Group{N: n, Weight: weight}
	return req
}

// takePermits acquires permits that are free.
func takePermits(t testing.TB, b backend.Backend, req backend.Request) backend.Grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), req)
	if err != nil {
		t.Fatalf("Acquire of %d of %d permits, which are free: expected a grant, seen %v", req.Group.Weight, req.Group.N, err)
	}
	return g
}

func returnPermits(t testing.TB, b backend.Backend, req backend.Request, g backend.Grant) {
	t.Helper()
	req.Fence, req.Private = g.Fence, g.Private
	if g.Token != "" {
		req.Token = g.Token
	}
	if err := b.Release(t.Context(), req); err != nil {
		t.Errorf("Release of permits: expected nil, seen %v", err)
	}
}

func groupHandsOn(t testing.TB, h Harness) {
	const n = 4
	bs := groupers(t, h, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	all := permitsOf(n, n)
	g := takePermits(t, bs[0], all)
	var calls []*queued
	for i, weight := range []int{1, 2, 3, 1} { // the third has no room beside the first two
		q := queueFor(ctx, bs[i%len(bs)], permitsOf(n, weight), 0)
		q.waits(t)
		calls = append(calls, q)
	}
	released := time.Now()
	returnPermits(t, bs[0], all, g)
	for i, q := range calls[:2] {
		q.granted(t, "Queue of permits that were released to be granted", hangLimit)
		if late := q.at.Sub(released); late > slack {
			t.Errorf("caller %d of permits that were released: expected a grant soon, seen one after %v", i, late)
		}
	}
	if both := slices.Concat(calls[0].grant.Permits, calls[1].grant.Permits); len(slices.Compact(slices.Sorted(
		slices.Values(both)))) != 3 {
		t.Errorf("callers of one and of two permits: expected three different ones, seen %v", both)
	}
	time.Sleep(stall) // nothing tells that a caller was granted nothing
	for i, q := range calls[2:] {
		q.waitsOn(t, fmt.Sprintf("Queue of caller %d, behind one that wants more than is free", i+2))
	}
	for _, q := range calls {
		o := q.granted(t, "Queue of permits to be granted", hangLimit)
		if err := o.release(ctx); err != nil {
			t.Errorf("Release of permits: expected nil, seen %v", err)
		}
	}
}

func groupOvertakesNobody(t testing.TB, h Harness) {
	const n = 3
	bs := groupers(t, h, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 3*hangLimit)
	defer cancel()
	one := permitsOf(n, 1)
	g := takePermits(t, bs[0], one)
	q := queueFor(ctx, bs[1], permitsOf(n, n), 0)
	q.waits(t)
	for i, b := range bs {
		if g, err := b.Acquire(ctx, permitsOf(n, 1)); err == nil {
			t.Errorf("client %d, while another one waits for all permits: expected ErrHeld, seen %v", i, g.Permits)
		}
	}
	returnPermits(t, bs[0], one, g)
	if err := q.granted(t, "Queue of all permits to be granted", hangLimit).release(ctx); err != nil {
		t.Errorf("Release of permits: expected nil, seen %v", err)
	}
}

func groupTwiceIsGrantedOnce(t testing.TB, h Harness) {
	const n = 5
	bs := groupers(t, h, 1)
	req := permitsOf(n, 2)
	first := takePermits(t, bs[0], req)
	again := takePermits(t, bs[0], req)
	if !slices.Equal(first.Permits, again.Permits) || first.Fence != again.Fence {
		t.Errorf("the second execution: expected permits %v with the token %d, seen %v and %d", first.Permits, first.Fence,
			again.Permits, again.Fence)
	}
	rest := permitsOf(n, n-2)
	g := takePermits(t, bs[0], rest)
	returnPermits(t, bs[0], rest, g)
	returnPermits(t, bs[0], req, again)
}
