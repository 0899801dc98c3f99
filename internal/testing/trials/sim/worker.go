package sim

import (
	"context"
	"time"

	"github.com/golocker/locker"
)

// work locks, reads, writes and unlocks until it is calm, or the client has died.
func (c *client) work(d *dice) {
	for c.gate() && !c.world.isCalm() {
		c.round(d)
	}
}

func (c *client) round(d *dice) {
	w := c.world
	key := w.keys[d.intn(len(w.keys))]
	ttl := longTTL
	if key != longKey {
		ttl = d.between(w.MinTTL, w.MaxTTL).Round(time.Millisecond)
	}
	opts := []locker.Option{locker.TTL(ttl)}
	renews := d.chance(.5)
	if !renews {
		opts = append(opts, locker.NoRenewal())
	}
	if d.chance(.05) {
		opts = append(opts, locker.MinHold(d.upTo(100*time.Millisecond)))
	}
	if d.chance(.05) {
		opts = append(opts, locker.MaxHold(d.between(locker.MinTTL, ttl)))
	}
	lock := c.Lock
	if d.chance(.2) {
		lock = c.TryLock
	}
	ctx, cancel := context.WithTimeout(w.Context(), 20*time.Millisecond+d.upTo(2*time.Second))
	lease, err := lock(ctx, key, opts...)
	cancel()
	if err != nil {
		// Nodes at rest refuse at once, and until they have rested: without a pause no time would pass.
		time.Sleep(time.Millisecond + d.upTo(10*time.Millisecond))
		return
	}
	c.hold(d, lease, ttl)
	if key != longKey && !renews && w.strikes(d, abandoned, 1) {
		return
	}
	if !c.gate() {
		return
	}
	ctx, cancel = context.WithTimeout(w.Context(), d.upTo(time.Second))
	_ = lease.Unlock(ctx)
	cancel()
	if d.chance(.2) { // again: harmless, or the answer that did not come
		_ = lease.Unlock(w.Context())
	}
	time.Sleep(d.upTo(3 * time.Millisecond))
}

// hold does under the lease what locks are for.
func (c *client) hold(d *dice, lease locker.Lease, ttl time.Duration) {
	w := c.world
	fenced, twin := w.registers[lease.Key()], w.twins[lease.Key()]
	value, admitted := fenced.Read(lease.Fence())
	twinValue, _ := twin.Read(lease.Fence())
	time.Sleep(d.upTo(2 * time.Millisecond))
	if d.chance(.1) {
		time.Sleep(d.upTo(min(ttl, w.MaxTTL)))
	}
	if d.chance(.2) {
		ctx, cancel := context.WithTimeout(w.Context(), d.upTo(time.Second))
		_ = lease.Extend(ctx)
		cancel()
	}
	if lease.Err() != nil {
		return
	}
	c.gate() // a pause just here is what no lock can help against
	if w.strikes(d, careless, 1) {
		time.Sleep(d.upTo(2 * w.MaxTTL))
	}
	if admitted && fenced.Write(lease.Fence(), value) {
		w.count("fenced updates", 1)
	}
	twin.Write(lease.Fence(), twinValue)
}
