package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/internal/redis/node"
)

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// When a lock has ended by its time and another is there, the waiter that had the turn has probably taken it, and the
// others need not ask the nodes. They believe that once between two attempts, and not while nodes fail.
func TestWaiterLetsOneAttemptBe(t *testing.T) {
	const ttl = time.Second
	p, now := pacing{}, epoch
	look := func(after, left time.Duration, want bool) {
		t.Helper()
		now = now.Add(after)
		if got := p.changed(now, left); got != want {
			t.Errorf("changed: %v, want %v", got, want)
		}
	}
	look(0, ttl, false)     // the first look
	look(ttl/2, ttl, false) // extended
	look(ttl+1, ttl, true)  // another one
	look(ttl+1, ttl, false) // again
	look(ttl/2, 0, true)    // free
	look(ttl, 0, false)     // still free
	look(ttl, ttl, false)   // taken
	p.asked()
	look(ttl/2, ttl/2, false) // the same lock
	p.moved = true
	look(ttl+1, ttl, false)
	p.moved = false
	p.quorum(now, false, 0)
	look(ttl+1, ttl, false)
	p.quorum(now, true, 0)
	look(ttl+1, ttl, true)
}

// What a waiter does by what the node that keeps the queue says.
func TestPacing(t *testing.T) {
	const again = 1500 * time.Millisecond // what the node asks for
	mine := node.Standing{Mine: true, Again: again}
	taken := node.Standing{Mine: true, Left: time.Minute, Again: again}
	behind := node.Standing{Rank: 1, Left: time.Minute, Again: again}
	between := node.Standing{Rank: 1, Again: again} // the lock is free, but others come first
	at := epoch.Add
	begun := func() *pacing { return &pacing{since: epoch} }

	t.Run("the turn", func(t *testing.T) {
		p := begun()
		assert.Equal(t, decision{ask: true, all: true, turn: true}, p.told())
		d := p.stood(epoch, mine, false)
		assert.True(t, d.ask && d.all && d.turn && !d.late && !d.others)
	})
	t.Run("after an attempt that failed, not all nodes at once", func(t *testing.T) {
		p := begun()
		d := p.told()
		p.asked()
		assert.False(t, p.lost(at(time.Second), &d, false))
		assert.Less(t, d.pause, 2*minBackoff)
		d = p.stood(at(time.Second), mine, false)
		assert.True(t, d.ask && !d.all && d.turn)
		p.told() // others may have been before it, and have gone
		assert.True(t, p.stood(at(time.Second), mine, false).all)
	})
	t.Run("others", func(t *testing.T) {
		for _, s := range []node.Standing{taken, behind, between} {
			p := begun()
			d := p.stood(epoch, s, false)
			assert.True(t, !d.ask && !d.turn && d.others, "%+v: %+v", s, d)
		}
	})
	t.Run("its own attempt", func(t *testing.T) {
		p := begun()
		for i := range ownLooks {
			d := p.stood(epoch, taken, true)
			assert.True(t, !d.ask && !d.others && d.pause < minBackoff<<i, "%+v", d)
		}
		assert.True(t, p.stood(epoch, taken, true).others)
	})
	t.Run("pauses grow", func(t *testing.T) {
		p := begun()
		for i := range 10 {
			d := p.stood(epoch, taken, false)
			assert.LessOrEqual(t, d.pause, min(again, soon<<i))
			assert.GreaterOrEqual(t, d.pause, min(again, soon<<i/2))
		}
	})
	t.Run("poll", func(t *testing.T) {
		for s, most := range map[node.Standing]time.Duration{taken: overdue, between: overdue, behind: 3 * overdue} {
			p := begun()
			d := p.stood(at(most-time.Millisecond), s, false)
			assert.True(t, !d.ask && d.pause <= time.Millisecond+3*maxBackoff, "%+v: %+v", s, d)
			d = p.stood(at(most), s, false)
			assert.True(t, d.ask && d.all && d.late, "%+v: %+v", s, d)
			p.moved = true
			p.since = at(most)
			assert.True(t, p.stood(at(most+faultRetry), s, false).late, "the queue has moved")
		}
	})
	t.Run("no node keeps the queue", func(t *testing.T) {
		p := begun()
		p.moved = true
		d := p.alone(epoch)
		assert.True(t, d.ask && !d.all && !d.late)
		assert.False(t, p.lost(epoch, &d, false))
		assert.Positive(t, d.pause, "it must not ask again at once")
		d = p.alone(at(faultRetry))
		assert.True(t, d.ask && d.all && d.late)
		p.lost(at(faultRetry), &d, false)
		assert.Positive(t, d.pause)
	})
	t.Run("the node is wrong about the owner", func(t *testing.T) {
		p := begun()
		for range maxFailed {
			d := p.stood(epoch, mine, false)
			assert.False(t, p.lost(epoch, &d, true))
		}
		d := p.stood(epoch, mine, false)
		assert.True(t, p.lost(epoch, &d, true))
		assert.Zero(t, d.pause)
		d = p.stood(at(overdue), taken, false)
		assert.True(t, d.late && p.lost(at(overdue), &d, true))
	})
	t.Run("no quorum", func(t *testing.T) {
		p := begun()
		d := decision{pause: again}
		assert.Equal(t, again, p.wait(epoch, d, time.Minute))
		p.quorum(epoch, false, 0)
		assert.LessOrEqual(t, p.wait(epoch, d, time.Minute), faultRetry)
		assert.LessOrEqual(t, p.wait(epoch, decision{pause: 1}, time.Minute), time.Duration(1))
		p.quorum(epoch, false, 10*time.Second) // the nodes rest
		assert.GreaterOrEqual(t, p.wait(epoch, d, time.Minute), 10*time.Second)
		assert.Less(t, p.wait(epoch, d, time.Second), time.Second+3*maxBackoff, "and its patience ends before that")
		assert.LessOrEqual(t, p.wait(at(10*time.Second), d, time.Minute), faultRetry)
		p.quorum(epoch, true, 0)
		assert.Equal(t, again, p.wait(epoch, d, time.Minute))
	})
}

// Pauses double from attempt to attempt up to a limit. Two waiters that fail together get different pauses.
func TestBackoff(t *testing.T) {
	for _, tt := range []struct {
		failed int
		most   time.Duration
	}{
		{0, 2 * time.Millisecond},
		{1, 4 * time.Millisecond},
		{2, 8 * time.Millisecond},
		{3, 16 * time.Millisecond},
		{4, 32 * time.Millisecond},
		{5, 64 * time.Millisecond},
		{6, 100 * time.Millisecond},
		{7, 100 * time.Millisecond},
		{1000, 100 * time.Millisecond},
	} {
		seen := map[time.Duration]bool{}
		for range 1000 {
			d := backoff(tt.failed)
			if d < tt.most/2 || d >= tt.most {
				t.Fatalf("after %d attempts a pause of %v, want %v to %v", tt.failed, d, tt.most/2, tt.most)
			}
			seen[d] = true
		}
		if len(seen) == 1 {
			t.Errorf("after %d attempts always the same pause", tt.failed)
		}
	}
}
