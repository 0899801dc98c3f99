package sim

import (
	"slices"
	"time"
)

// nemesis does to nodes and clients what can be done to them, until it is calm. One at a time looks at each kind, so
// kinds overlap and a kind does not with itself, save for what lasts.
func (w *world) nemesis() {
	for k, inject := range map[fault]func(*dice){
		subscribersCut: func(d *dice) { w.victim(d).Cut() },
		crashed:        w.crash, forgot: w.forget, hung: w.hang, separated: w.separate, paused: w.pause, died: w.kill,
	} {
		if w.Factors[k] == 0 {
			continue
		}
		d := newDice(w.Seed, 200+uint64(k))
		w.underWay.Go(func() {
			const step = 50 * time.Millisecond
			for !w.isCalm() {
				time.Sleep(d.upTo(2 * step))
				if w.happens(d, k, step.Seconds()) {
					inject(d)
				}
			}
		})
	}
}

// victim draws a node that faults may hit.
func (w *world) victim(d *dice) *server {
	victims := slices.DeleteFunc(slices.Clone(w.nodes), (*server).isSpared)
	return victims[d.intn(len(victims))]
}

// crash ends a node's process and starts it again, with its data.
func (w *world) crash(d *dice) {
	w.victim(d).restart(d.between(10*time.Millisecond, 500*time.Millisecond), nil)
}

// forget does the same without its data. Where exclusion is promised the node stays away for as long as any lock may
// last, and a little longer than clocks differ otherwise: only tokens then keep their promise.
func (w *world) forget(d *dice) {
	if w.recovers() {
		w.victim(d).recover(d)
		return
	}
	away := w.past()
	if w.Profile == Model {
		away += w.MaxTTL + w.MaxTTL/50
	}
	s := w.victim(d)
	s.restart(away+d.upTo(100*time.Millisecond), s.Flush)
}

// past is how long a node that forgets now has to be away, so that its clock is then past every token issued before.
// The clocks have drifted apart since the episode began, and that of the node may be the slowest: docs/safety.md, G2.
func (w *world) past() time.Duration {
	apart := 2*w.Skew + time.Duration(2*w.Drift*float64(w.history.Now()))
	return time.Duration(float64(100*time.Millisecond+apart) / (1 - w.Drift))
}

// recover makes a node forget in one of the ways in which real ones do, and lets it answer again at once: its data are
// deleted, it is restarted without data, or it is restarted with data of up to a second ago.
func (s *server) recover(d *dice) {
	switch d.intn(3) {
	case 0:
		s.mu.Lock()
		s.life++
		s.forgotAt = s.world.history.Now()
		s.mu.Unlock()
		s.Flush()
	case 1:
		s.restart(s.world.past(), s.Flush)
	case 2:
		past := s.Save()
		time.Sleep(d.upTo(time.Second))
		s.restart(s.world.past(), func() { s.GoBack(past) })
	}
}

// restart ends the node's process, and starts it again after a while. If forget is not nil, it has lost data.
func (s *server) restart(away time.Duration, forget func()) {
	s.mu.Lock()
	if s.down {
		s.mu.Unlock()
		return
	}
	s.down = true
	s.boot++
	if forget != nil {
		s.life++
		s.forgotAt = s.world.history.Now()
	}
	s.mu.Unlock()
	s.Cut()
	s.Restart()
	if forget != nil {
		forget()
	}
	time.Sleep(away)
	s.mu.Lock()
	s.down = false
	s.mu.Unlock()
}

// hang stops a node's process for a while. What it receives meanwhile it executes then, wanted or not.
func (w *world) hang(d *dice) {
	s := w.victim(d)
	stopped := make(chan struct{})
	s.mu.Lock()
	s.stopped = stopped
	s.mu.Unlock()
	time.Sleep(d.between(10*time.Millisecond, w.MaxTTL))
	s.mu.Lock()
	s.stopped = nil
	s.mu.Unlock()
	close(stopped)
}

// separate cuts a client off from a node for a while, or from several, so that its leases can lose their majority.
func (w *world) separate(d *dice) {
	c := w.clients[d.intn(w.Clients)]
	links := []*link{c.links[w.victim(d).id]}
	longest := w.MaxTTL
	if d.intn(3) == 0 {
		longest *= 2
		for range d.intn(len(w.nodes)) {
			links = append(links, c.links[w.victim(d).id]) // perhaps the same again
		}
	}
	how := d.intn(4)
	for _, l := range links {
		l.mu.Lock()
		l.noWay, l.noWayBack, l.unreachable = how == 0 || how == 2, how == 1 || how == 2, how == 3
		l.mu.Unlock()
	}
	time.Sleep(d.between(20*time.Millisecond, longest))
	for _, l := range links {
		l.mu.Lock()
		l.noWay, l.noWayBack, l.unreachable = false, false, false
		l.mu.Unlock()
	}
}

// pause stops a client's messages and its workers for a while. Its timers go on, which a stopped process' do not: what
// a holder does that does not look at them is played by its workers.
func (w *world) pause(d *dice) {
	c := w.clients[d.intn(w.Clients)]
	stopped := make(chan struct{})
	c.mu.Lock()
	c.stopped = stopped
	c.mu.Unlock()
	time.Sleep(d.between(10*time.Millisecond, w.MaxTTL))
	c.mu.Lock()
	c.stopped = nil
	c.mu.Unlock()
	close(stopped)
}

// kill ends a client, as long as two remain.
func (w *world) kill(d *dice) {
	c := w.clients[d.intn(w.Clients)]
	if len(w.living()) > 2 {
		c.mu.Lock()
		c.dead = true
		c.mu.Unlock()
	}
}
