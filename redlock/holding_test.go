package redlock

import (
	"fmt"
	"testing"

	"github.com/golocker/locker/internal/testing/short"
)

func TestTally(t *testing.T) {
	for _, tt := range []struct {
		n       int
		yes, no nodeSet
		want    outcome
	}{
		{5, set(0, 1, 2), 0, won}, {5, set(0, 1), 0, undecided}, {5, set(0, 1), set(2, 3), undecided},
		{5, set(0), set(1, 2, 3), lost}, {4, set(0, 1), set(2), undecided}, {4, set(0, 1), set(2, 3), lost},
		{1, 0, set(0), lost}, {2, set(0), set(1), lost},
	} {
		tally := tally{n: tt.n, need: tt.n/2 + 1, yes: tt.yes, no: tt.no}
		if got := tally.outcome(); got != tt.want {
			t.Errorf("%d nodes, yes %b, no %b: %d, want %d", tt.n, tt.yes, tt.no, got, tt.want)
		}
	}
}

// world is a lease of two nodes, two operations on it, and what is under way between them. It is a value: a step makes
// another one.
type world struct {
	holding
	ops    [2]operation
	later  [2]int  // releases in the background
	may    nodeSet // have granted, or may have, or may yet
	open   nodeSet // have not answered an acquisition, which can land at any time
	unsaid nodeSet // have not answered the last acquisition
	stale  nodeSet // have granted when the lease was over
	denied nodeSet // said to a release that the lock is not there
	twice  nodeSet // released in the background although a release under way will ask them
	wrong  string  // what must not have happened
}

// operation is an extension or a release.
type operation struct {
	tally
	begun, over bool
	news, told  nodeSet // has yet to hear that these have answered their acquisition; has been told once
	sent        nodeSet // asked, and yet to answer; also when it is over
	settled     [2]int
}

// steps returns all that can happen next.
func (w world) steps(releases [2]bool) (next []world) {
	step := func(f func(*world)) {
		v := w
		f(&v)
		next = append(next, v)
	}
	if !w.holding.over {
		step(func(v *world) { v.holding.over = true })
	}
	w.pending.each(func(i int) {
		for _, a := range []answer{yes, no, unknown} {
			step(func(v *world) { v.acquired(i, a) })
		}
	})
	for k, o := range w.ops {
		if !o.begun {
			for _, unsent := range []nodeSet{0, only(0), only(1), allOf(2)} {
				if unsent == 0 || releases[k] && unsent&^w.pending == 0 {
					step(func(v *world) { v.begins(k, releases[k], unsent) })
				}
			}
			continue
		}
		o.sent.each(func(i int) {
			for _, a := range []answer{yes, no, unknown} {
				step(func(v *world) { v.answers(k, i, a) })
			}
		})
		if o.over {
			continue
		}
		o.news.each(func(i int) {
			step(func(v *world) {
				o := &v.ops[k]
				o.news &^= only(i)
				v.asks(o, v.arrived(&o.tally, i))
				v.denies(o, only(i))
			})
		})
		for _, unsent := range []nodeSet{0, only(0), only(1), allOf(2)} { // what was not sent yet is not sent any more
			step(func(v *world) { v.ends(k, unsent) })
		}
	}
	return next
}

// acquired is the answer to an acquisition that was pending.
func (w *world) acquired(i int, a answer) {
	switch a {
	case unknown:
		w.open |= only(i)
		w.unsaid |= only(i)
	case yes:
		w.unsaid &^= only(i)
	}
	if a != no && w.holding.over {
		w.stale |= only(i)
	}
	if a != no {
		w.may |= only(i)
		w.denied &^= only(i)
	}
	orphan := w.late(i, a, 1, 1, false)
	if orphan {
		w.later[i]++
	}
	for k := range w.ops {
		if o := &w.ops[k]; o.begun && !o.over && (o.awaited &^ o.told).has(i) {
			o.news |= only(i)
			o.told |= only(i)
			if orphan && o.releases && (w.held | w.doubtful).has(i) {
				w.twice |= only(i)
			}
		}
	}
}

func (w *world) begins(k int, releases bool, unsent nodeSet) {
	o := &w.ops[k]
	o.begun = true
	w.pending &^= unsent
	var ask nodeSet
	o.tally, ask = w.begin(2, releases)
	w.asks(o, ask)
	w.denies(o, allOf(2))
}

// denies is for nodes that have not been asked, and may have been taken for such that lack the lock.
func (w *world) denies(o *operation, nodes nodeSet) {
	if !o.releases && !w.holding.over && nodes&o.no&w.unsaid != 0 {
		w.wrong = "a node denies that may have the lock"
	}
}

func (w *world) asks(o *operation, ask nodeSet) {
	o.sent |= ask
	if ask&w.stale != 0 {
		w.wrong = "what was granted when it was over counts"
	}
	if o.releases && ask&w.open&^w.doubtful != 0 {
		w.wrong = "an acquisition may land after the release"
	}
}

func (w *world) answers(k, i int, a answer) {
	o := &w.ops[k]
	o.sent &^= only(i)
	if a == no && o.releases {
		w.denied |= only(i)
	}
	w.settles(k, i, a)
	if !o.over {
		o.answer(i, a)
	}
}

func (w *world) settles(k, i int, a answer) {
	o := &w.ops[k]
	o.settled[i]++
	switch {
	case !o.releases && a == no:
		w.deny(i)
	case o.releases && w.settle(i, a):
		w.later[i]++
	}
}

func (w *world) ends(k int, unsent nodeSet) {
	o := &w.ops[k]
	w.end(&o.tally).each(func(i int) { w.settles(k, i, unknown) })
	(o.unanswered() & unsent).each(func(i int) {
		o.sent &^= only(i)
		w.settles(k, i, unknown)
	})
	o.over, o.news = true, 0
	w.review(&o.tally)
	if o.releases {
		return
	}
	before := w.holding
	switch healed := w.heal(&o.tally, false); {
	case healed == 0:
	case before.released:
		w.wrong = "it heals after Unlock"
	case before.over, o.outcome() == lost:
		w.wrong = "it heals when it is lost"
	case healed&(before.held|before.pending) != 0:
		w.wrong = "a node is asked that has the lock, or has been asked"
	case w.pending != before.pending|healed:
		w.wrong = "an acquisition is not pending"
	}
}

// check says what must not be, now or when nothing can happen any more.
func (w *world) check(ended bool) string {
	if w.wrong != "" {
		return w.wrong
	}
	for k, o := range w.ops {
		for i := range o.settled {
			switch asked := o.asked.has(i); {
			case o.settled[i] > 1:
				return fmt.Sprintf("operation %d: node %d is settled %d times", k, i, o.settled[i])
			case ended && asked && o.settled[i] == 0:
				return fmt.Sprintf("operation %d: node %d was asked and is not settled", k, i)
			case asked && !w.may.has(i):
				return fmt.Sprintf("operation %d: node %d was asked without having the lock", k, i)
			}
		}
		if !o.begun {
			continue
		}
		if got := o.outcome(); got == won && o.yes.len() < 2 || got == lost && o.no == 0 || o.yes&o.no != 0 {
			return fmt.Sprintf("operation %d: outcome %d of yes %b, no %b", k, got, o.yes, o.no)
		}
	}
	for i, n := range w.later {
		switch {
		case n > 3 || w.twice.has(i):
			return fmt.Sprintf("node %d is released again and again", i)
		case n > 0 && !w.may.has(i):
			return fmt.Sprintf("node %d is released without having granted", i)
		case ended && w.released && w.may.has(i) && n == 0 && !(w.deleted | w.denied).has(i):
			return fmt.Sprintf("node %d keeps the lock", i)
		}
	}
	switch {
	case ended && w.pending != 0:
		return "an acquisition is pending for ever"
	case ended && w.releasing != 0:
		return "a release is under way for ever"
	}
	return ""
}

// key is what makes a world a new one.
type key struct {
	held, pending, doubtful, unheard, deleted nodeSet
	lost                                      bool
	may, open, unsaid, stale, denied          nodeSet
	ops                                       [2]operation
	later                                     [2]int
}

func (w *world) key() key {
	return key{
		w.held, w.pending, w.doubtful, w.unheard, w.deleted, w.holding.over, w.may, w.open, w.unsaid, w.stale,
		w.denied, w.ops, w.later,
	}
}

// TestHolding goes through everything that can happen to a lease of two nodes, some of whose grants come late, while it
// is extended, heals, and is released: in every order, with every answer, and with operations that end at any moment.
// (A third node would only add votes, for which there is TestTally, and millions of states.)
func TestHolding(t *testing.T) {
	for _, releases := range short.Part(t, 1, [][2]bool{{true, true}, {false, false}, {false, true}}) {
		for _, held := range []nodeSet{set(0), set(0, 1)} {
			seen := map[key]bool{}
			todo := []world{{holding: holding{held: held, pending: allOf(2) &^ held}, may: held}}
			healed := false
			for len(todo) > 0 {
				w := todo[len(todo)-1]
				todo = todo[:len(todo)-1]
				next := w.steps(releases)
				if wrong := w.check(len(next) == 0); wrong != "" {
					t.Fatalf("%s: %+v", wrong, w)
				}
				healed = healed || (w.held&w.doubtful) != 0
				for _, v := range next {
					if k := v.key(); !seen[k] {
						seen[k] = true
						todo = append(todo, v)
					}
				}
			}
			if !healed && !releases[1] {
				t.Error("it never healed")
			}
			t.Logf("releases %v, held %b: %d states", releases, held, len(seen))
		}
	}
}

// A grant that came late, with a counter past the token, is extended and released by its own.
func TestHoldingAheadOfTheToken(t *testing.T) {
	h := holding{held: set(0, 1), pending: set(2, 3)}
	h.late(2, yes, 9, 8, false)
	h.late(3, yes, 8, 8, false)
	if h.held != allOf(4) || h.pending != 0 || len(h.ahead) != 1 || h.ahead[2] != 9 {
		t.Errorf("%+v", h)
	}
}

// The node that keeps the turn of a lease that was released gets it back also if it did not grant.
func TestHoldingGivesBackTheTurn(t *testing.T) {
	for _, released := range []bool{false, true} {
		h := holding{held: set(0, 1), pending: set(2), released: released}
		if got := h.late(2, no, 0, 8, true); got != released {
			t.Errorf("released %t: %t", released, got)
		}
	}
}
