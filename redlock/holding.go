package redlock

// holding is the state of a lease on its nodes. It says which nodes to ask to extend and to release. Like a voting,
// it is the protocol and nothing else. The steps of one node keep their order: only what was granted is released, and a
// node takes part in the next operation when it has answered the last one. So late answers of a minority delay nothing.
//
// A lease heals: after every extension, nodes that lack its lock are asked for it again; see heal. For the rest of the
// protocol, that is an acquisition that is answered late.
type holding struct {
	held    nodeSet // nodes that have granted and have not denied the lock since
	pending nodeSet // nodes with an acquisition in flight; at most one for each node
	// doubtful nodes may have the lock, or may get it later. An acquisition was not answered there, or the node has
	// denied the lock while a copy of the request may still be in flight. Their release leaves a tombstone.
	doubtful nodeSet
	// unheard nodes are the doubtful nodes that have not said since whether they have the lock.
	unheard nodeSet
	// ahead has the counters of nodes that granted late, with more than the token. Nobody else's token can be between
	// the two, so such a node extends and releases by its own counter. See
	// docs/adr/0010-late-grants-ahead-of-the-token.md.
	ahead map[int]uint64
	// over says that a majority has denied the lock, or that its time is over. Nothing is acquired any more, and late
	// grants are released.
	over      bool
	released  bool    // a release has begun, with the same consequences
	releasing int     // releases in progress that will ask nodes whose grant arrives meanwhile
	deleted   nodeSet // nodes that have confirmed the release
}

// voted records the answer of node i to an acquisition: yes if it has granted with counter, unknown if it may have
// granted or may do so later.
func (h *holding) voted(i int, a answer, counter, token uint64) {
	switch a {
	case yes:
		h.held |= only(i)
		h.unheard &^= only(i)
		delete(h.ahead, i)
		if counter > token {
			if h.ahead == nil {
				h.ahead = map[int]uint64{}
			}
			h.ahead[i] = counter
		}
	case unknown:
		h.doubtful |= only(i)
		h.unheard |= only(i)
	}
}

// late records the answer of node i, which was pending, to its acquisition; see voted. It reports whether the caller
// has to release the node in the background, because no operation will. keeps says that the node keeps the lease's
// turn, which is given up even where the lock is not held.
func (h *holding) late(i int, a answer, counter, token uint64, keeps bool) (orphan bool) {
	h.pending &^= only(i)
	h.voted(i, a, counter, token)
	switch has := (h.held | h.doubtful).has(i); {
	case !has:
		return h.released && keeps
	case h.over && a != no: // Unlock must not count it: somebody else may have had the lock since
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
	if h.held.has(i) && !h.released { // after a release, the refusal may be its effect
		h.held &^= only(i)
		h.doubtful |= only(i)
	}
}

// heal is called when an extension has ended. It returns the nodes that lack the lock and are to be asked for it again.
// It returns none if unwanted is true, or if a majority has denied the lock: the lock is lost then, and somebody else
// may have had it. What a node grants counts from the next extension on. The grant may be old by then, with a TTL that
// began when it was made. An extension does not create the lock by itself, because a late one would bring back a lock
// that was released.
func (h *holding) heal(t *tally, unwanted bool) (ask nodeSet) {
	h.over = h.over || t.outcome() == lost
	if h.over || h.released || unwanted {
		return 0
	}
	ask = allOf(t.n) &^ (h.held | h.pending)
	h.pending |= ask
	return ask
}

// begin starts an extension or a release over n nodes. It returns the nodes to ask. Nodes that do not have the lock and
// cannot get it count as no. Nodes that have confirmed an earlier release count as yes. In an extension, an unheard
// node counts as silent.
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

// arrived records that node i has answered the acquisition that was pending when the operation began. It returns the
// nodes to ask.
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

// end is called when an operation has ended, decided or not. It returns the nodes that have granted meanwhile and were
// not asked.
func (h *holding) end(t *tally) (unasked nodeSet) {
	if t.releases && t.awaited != 0 {
		h.releasing--
	}
	return t.awaited & (h.held | h.doubtful) &^ (t.asked | h.pending)
}

// review is called when an operation is about to be decided. For an extension: nodes that lacked the lock when it
// began, and may have it now because another extension has healed them, have denied nothing. For a release: a node that
// has confirmed an earlier release meanwhile, so that this one found nothing, has said yes.
func (h *holding) review(t *tally) {
	if t.releases {
		t.yes |= h.deleted
		t.no &^= h.deleted
		return
	}
	t.no &^= (h.held | h.pending | h.unheard) &^ t.asked
}

// settle records what node i has answered to a release, also after the release has ended. It reports whether the
// release of that node has to go on in the background.
func (h *holding) settle(i int, a answer) (later bool) {
	if a == yes {
		h.deleted |= only(i)
	}
	return a == unknown
}

// answer is a node's answer to an extension or a release.
type answer uint8

const (
	unknown answer = iota // the node failed, or was not asked
	yes
	no
)

// tally decides an extension or a release. Each node answers yes or no, or does not answer.
type tally struct {
	n, need  int
	releases bool
	// nodes that were pending when it began; they are asked when they have granted, and can stand in for others that
	// fail
	awaited nodeSet
	asked   nodeSet
	yes, no nodeSet
	silent  nodeSet // nodes that are not expected to answer
}

// answer records the answer of node i.
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

// unanswered returns the nodes that were asked and have not answered yet.
func (t *tally) unanswered() nodeSet { return t.asked &^ (t.yes | t.no | t.silent) }

func (t *tally) outcome() outcome {
	switch {
	case t.yes.len() >= t.need:
		return won
	case t.n-t.no.len() < t.need:
		return lost // so many nodes have said no that a majority cannot say yes
	default:
		return undecided
	}
}

// open reports whether an answer is still expected.
func (t *tally) open() bool { return (t.yes | t.no | t.silent).len() < t.n }
