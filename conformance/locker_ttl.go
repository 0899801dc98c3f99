package conformance

import (
	"testing"
	"time"

	"github.com/golocker/locker"
)

func extendTTLKeeps(t testing.TB, h Harness) {
	ls, _ := clients(t, h, 2)
	if _, ok := locker.As[*locker.Client](ls[0]); !ok {
		t.Skip("the leases are not those of a locker.Client")
	}
	lease := lock(t, ls[0], "k", locker.TTL(h.short()), locker.NoRenewal())
	for _, bad := range []time.Duration{-1, 0, locker.MinTTL - 1, locker.MaxTTL + 1} {
		wantError(t, "ExtendTTL with a TTL out of range", locker.ExtendTTL(t.Context(), lease, bad), locker.ErrInvalid)
	}
	longer := h.ttl(h.short() * 3 / 2)
	start := time.Now()
	if err := locker.ExtendTTL(t.Context(), lease, longer); err != nil {
		t.Fatalf("ExtendTTL of a held lock: expected no error, seen %v", err)
	}
	until := lease.Until()
	if valid := until.Sub(start); valid <= h.short() || valid >= longer+time.Since(start) {
		t.Errorf("ExtendTTL: expected Until a little less than %v from now, seen %v", longer, valid)
	}
	if err := locker.ExtendTTL(t.Context(), lease, h.short()); err != nil {
		t.Errorf("ExtendTTL with a smaller TTL: expected no error, seen %v", err)
	}
	if lease.Until().Before(until) {
		t.Errorf("ExtendTTL with a smaller TTL: expected Until to stay, seen it move back by %v",
			until.Sub(lease.Until()))
	}
	next, at := acquireWhenFree(t, ls[1], "k")
	if early := until.Sub(at); early > 0 {
		t.Errorf("expected nobody to get the lock before the extended Until, seen it %v earlier", early)
	}
	if late := at.Sub(start.Add(longer)); late > h.late()+h.short() {
		t.Errorf("expected the lock to be free after its new TTL of %v, seen it free %v later", longer, late)
	}
	unlock(t, next)

	lease, _ = acquireWhenFree(t, ls[0], "k", locker.TTL(longTTL))
	if err := locker.ExtendTTL(t.Context(), lease, h.short()); err != nil {
		t.Fatalf("ExtendTTL of a held lock: expected no error, seen %v", err)
	}
	before := lease.Until()
	time.Sleep(h.short())
	if lease.Until().Before(before) {
		t.Errorf("renewals after ExtendTTL with a smaller TTL: expected Until to stay, seen it move back by %v",
			before.Sub(lease.Until()))
	}
	unlock(t, lease)
}
