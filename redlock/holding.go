package redlock

// holding is where a lease stands with its nodes, and what is asked of them to extend and to release it. Like an
// election it is the protocol and nothing else. A node's part of a step is over when it has answered, so that a
// minority's late answers do not hold up anything, and per node the steps keep their order: what is released was
// granted before.
//
// A lease heals: nodes that lack its lock are asked for it again after every extension, see heal. To the rest of the
// protocol that is an acquisition that is answered late.
type holding struct {
	held    nodeSet // granted here, and has not denied it since
	pending nodeSet // an acquisition is on its way; one at a time
	// doubtful nodes may have the lock, or may get it yet: an acquisition was not answered, or what was held was denied,
	// of which there may be a copy. They are released in a way that also keeps an acquisition from landing later.
	doubtful nodeSet
	// unheard nodes are those of doubtful of which it is not known whether they have the lock: they have not said since.
	unheard nodeSet
	// ahead has the counters of nodes that granted late and with more than the token. Nobody else's token can lie
	// between: such a node extends and releases by its own counter. See docs/adr/0010-late-grants-ahead-of-the-token.md.
	ahead     map[int]uint64
	over      bool    // a majority has denied the lock, or its time is up: nothing is acquired, late grants are released
	released  bool    // a release has begun: the same
	releasing int     // releases under way that ask whoever grants meanwhile
	deleted   nodeSet // the release was confirmed
}

// grant records that node i has granted with the given counter.
func (h *holding) grant(i int, counter, token uint64) {
	h.held |= only(i)
	h.unheard &^= only(i)
	delete(h.ahead, i)
	if counter > token {
		if h.ahead == nil {
			h.ahead = map[int]uint64{}
		}
		h.ahead[i] = counter
	}
}

// doubt records that an acquisition was sent to node i and not answered.
func (h *holding) doubt(i int) {
	h.doubtful |= only(i)
	h.unheard |= only(i)
}

// late records what node i, which was pending, has answered to its acquisition: yes if it has granted, unknown if it
// may have, or may yet. It reports whether it is to be released in the background, because nobody else will. keeps says
// that it keeps the lease's turn, which is given back also where the lock is not.
func (h *holding) late(i int, a answer, counter, token uint64, keeps bool) (orphan bool) {
	h.pending &^= only(i)
	switch a {
	case yes:
		h.grant(i, counter, token)
	case unknown:
		h.doubt(i)
	}
	switch has := (h.held | h.doubtful).has(i); {
	case !has:
		return h.released && keeps
	case h.over && a != no: // Unlock must not take it for the lease's: somebody else may have had the lock since
		h.held &^= only(i)
		h.doubtful &^= only(i)
		h.unheard &^= only(i)
		return true
	case h.released:
		return h.releasing == 0
	}
	return false
}

// deny records that node i has refused an extension.
func (h *holding) deny(i int) {
	if h.held.has(i) && !h.released { // else that may be why
		h.held &^= only(i)
		h.doubtful |= only(i)
	}
}

// heal is for an extension that has ended. It returns the nodes that lack the lock and are to be asked for it again,
// unless its caller does not want that. A lock that a majority has denied is lost and never healed: somebody else may
// have had it. What is granted counts from the next extension on, for it may have been granted long ago, with a TTL
// that began then.
func (h *holding) heal(t *tally, unwanted bool) (ask nodeSet) {
	h.over = h.over || t.outcome() == lost
	if h.over || h.released || unwanted {
		return 0
	}
	ask = allOf(t.n) &^ (h.held | h.pending)
	h.pending |= ask
	return ask
}

// begin starts to extend or to release, over n nodes. It returns the nodes to ask. All that neither have the lock nor
// may yet say no; those that have confirmed an earlier release, yes. A node that may have it and has not said so says
// nothing to an extension.
func (h *holding) begin(n int, releases bool) (t tally, ask nodeSet) {
	has := h.held
	if releases {
		h.released = true
		has |= h.doubtful
	}
	t = tally{
		need: n/2 + 1, n: n, releases: releases,
		no: allOf(n) &^ (has | h.pending), awaited: h.pending, asked: has &^ h.pending,
	}
	if !releases {
		t.silent = h.unheard &^ h.pending
		t.no &^= t.silent
	} else {
		t.yes = h.deleted
		t.asked &^= h.deleted
		if t.awaited != 0 {
			h.releasing++
		}
	}
	return t, t.asked
}

// arrived records that node i, which was pending when the operation began, is so no more. It returns the nodes to ask.
func (h *holding) arrived(t *tally, i int) (ask nodeSet) {
	switch {
	case h.held.has(i), t.releases && h.doubtful.has(i):
		t.asked |= only(i)
		return only(i)
	case h.unheard.has(i):
		t.answer(i, unknown)
	default:
		t.answer(i, no)
	}
	return 0
}

// end is for an operation that is over, decided or not: it asks nobody any more. It returns the nodes that have granted
// while it was under way and were not asked.
func (h *holding) end(t *tally) (unasked nodeSet) {
	if t.releases && t.awaited != 0 {
		h.releasing--
	}
	return t.awaited & (h.held | h.doubtful) &^ (t.asked | h.pending)
}

// review is for an operation that is about to be decided. To an extension, nodes that lacked the lock when it began, and
// may have it now because another one has healed them, have denied nothing. To a release, nodes that have confirmed an
// earlier one meanwhile, so that this one found nothing, have said yes.
func (h *holding) review(t *tally) {
	if t.releases {
		t.yes |= h.deleted
		t.no &^= h.deleted
		return
	}
	t.no &^= (h.held | h.pending | h.unheard) &^ t.asked
}

// settle records what node i has said to a release, also if that comes after its end. It reports whether the release of
// that node is to go on in the background.
func (h *holding) settle(i int, a answer) (later bool) {
	if a == yes {
		h.deleted |= only(i)
	}
	return a == unknown
}

// answer is what a node says to an extension or a release.
type answer uint8

const (
	unknown answer = iota // it failed, or was not even sent
	yes
	no
)

// tally decides an operation that every node answers with yes or no, or not at all: extending and releasing.
type tally struct {
	n, need  int
	releases bool
	awaited  nodeSet // pending when it began: asked when they have granted, to stand in for others that fail
	asked    nodeSet
	yes, no  nodeSet
	silent   nodeSet // no answer expected any more
}

// answer records what node i says.
func (t *tally) answer(i int, a answer) {
	switch a {
	case yes:
		t.yes |= only(i)
	case no:
		t.no |= only(i)
	default:
		t.silent |= only(i)
	}
}

// unanswered returns the nodes that were asked and are yet to answer.
func (t *tally) unanswered() nodeSet { return t.asked &^ (t.yes | t.no | t.silent) }

func (t *tally) outcome() outcome {
	switch {
	case t.yes.len() >= t.need:
		return won
	case t.n-t.no.len() < t.need:
		return lost // definitely: a majority has said no, or as many that the rest is none
	default:
		return undecided
	}
}

// open reports whether an answer is still expected.
func (t *tally) open() bool { return (t.yes | t.no | t.silent).len() < t.n }
