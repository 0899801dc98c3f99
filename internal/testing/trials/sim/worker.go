package sim

import (
	"errors"
	"time"

	"github.com/golocker/locker"
)

// work locks, reads, writes and unlocks until it is calm, or the client has died.
func (c *client) work(d *dice) {
	for c.gate() && !c.world.isCalm() {
		c.round(d)
	}
}

// plan is what is drawn for a round.
type plan struct {
	key    string
	ttl    time.Duration
	plain  bool // contexts without a Done channel
	renews bool
	opts   []locker.Option
}

func (c *client) plan(d *dice) plan {
	w := c.world
	p := plan{key: w.keys[d.intn(len(w.keys))], ttl: longTTL}
	if p.key != longKey {
		p.ttl = d.between(w.MinTTL, w.MaxTTL).Round(time.Millisecond)
		if p.ttl%(2*time.Millisecond) == 0 { // callers with the same TTL hand locks over
			p.ttl = w.MaxTTL.Round(time.Millisecond)
		}
	}
	p.plain = c.direct && d.chance(.5)
	if p.plain && p.key != longKey && !w.isSpared(p.key) && d.chance(.3) {
		p.ttl = d.between(20*time.Millisecond, 100*time.Millisecond) // shorter than exchanges may take
	}
	p.opts = []locker.Option{locker.TTL(p.ttl)}
	if p.renews = d.chance(.5); !p.renews {
		p.opts = append(p.opts, locker.NoRenewal())
	}
	if d.chance(.05) {
		p.opts = append(p.opts, locker.MinHold(d.upTo(100*time.Millisecond)))
	}
	// A grant that comes too late for MaxHold is an error, also on a server that is spared.
	if d.chance(.05) && !w.isSpared(p.key) {
		p.opts = append(p.opts, locker.MaxHold(d.between(locker.MinTTL, p.ttl)))
	}
	return p
}

func (c *client) round(d *dice) {
	w, p := c.world, c.plan(d)
	lock, tries := c.Lock, false
	if d.chance(.2) {
		lock, tries = c.TryLock, true
	}
	ctx, cancel := c.context(p.plain, 20*time.Millisecond+d.upTo(2*time.Second))
	call := time.Now()
	lease, err := lock(ctx, p.key, p.opts...)
	if tries {
		c.bounded(ctx, "TryLock", p, call)
	}
	c.apart(ctx, "Lock", p.key, err)
	cancel()
	if err != nil {
		// Nodes that are down, or rest, refuse at once: without a pause no time would pass.
		pause := 10 * time.Millisecond
		if w.guard() > 0 && errors.Is(err, locker.ErrUnavailable) {
			pause *= 10
		}
		time.Sleep(time.Millisecond + d.upTo(pause))
		return
	}
	c.hold(d, lease, p)
	if p.renews {
		c.keptApart(lease)
	}
	if p.key != longKey && !p.renews && w.happens(d, abandoned, 1) {
		return
	}
	if !c.gate() {
		return
	}
	ctx, cancel = c.context(p.plain, d.upTo(time.Second))
	c.apart(ctx, "Unlock", p.key, lease.Unlock(ctx))
	cancel()
	if d.chance(.2) { // again: harmless, or the answer that did not come
		_ = lease.Unlock(w.Context())
	}
	time.Sleep(d.upTo(3 * time.Millisecond))
}

// hold does under the lease what locks are for.
func (c *client) hold(d *dice, lease locker.Lease, p plan) {
	w := c.world
	fenced, twin := w.registers[lease.Key()], w.twins[lease.Key()]
	value, admitted := fenced.Read(lease.Fence())
	twinValue, _ := twin.Read(lease.Fence())
	time.Sleep(d.upTo(2 * time.Millisecond))
	if d.chance(.1) {
		time.Sleep(d.upTo(min(p.ttl, w.MaxTTL)))
	}
	if d.chance(.2) {
		ctx, cancel := c.context(p.plain, d.upTo(time.Second))
		call := time.Now()
		err := lease.Extend(ctx)
		c.bounded(ctx, "Extend", p, call)
		c.apart(ctx, "Extend", p.key, err)
		cancel()
	}
	if lease.Err() != nil {
		return
	}
	c.gate() // a pause just here is what no lock can help against
	if w.happens(d, careless, 1) {
		time.Sleep(d.upTo(2 * w.MaxTTL))
	}
	if w.Verifies {
		ctx, cancel := c.context(p.plain, time.Second)
		call := time.Now()
		if locker.Verify(ctx, lease) == nil {
			w.count("verified", 1)
		}
		c.bounded(ctx, "Verify", p, call)
		cancel()
	}
	if admitted && fenced.Write(lease.Fence(), value) {
		w.count("fenced updates", 1)
	}
	twin.Write(lease.Fence(), twinValue)
}
