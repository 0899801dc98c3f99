package redlock

import "testing"

// step is an event of a voting and what is expected after it.
type step struct {
	event   string // "grant", "deny", "held", "accept", "refuse", "skip"
	node    int
	counter uint64
	acquire nodeSet // nodes to be asked to acquire now
	raise   nodeSet // nodes to be asked to raise now
	outcome outcome
}

func set(nodes ...int) (s nodeSet) {
	for _, i := range nodes {
		s |= only(i)
	}
	return s
}

func TestElection(t *testing.T) {
	tests := []struct {
		name     string
		n, first int
		ask      nodeSet
		steps    []step
		token    uint64
	}{
		{"three agree at once", 5, -1, set(0, 1, 2, 3, 4), []step{
			{event: "grant", node: 4, counter: 7},
			{event: "grant", node: 0, counter: 7},
			{event: "grant", node: 2, counter: 7, outcome: won},
			{event: "grant", node: 1, counter: 9, outcome: won}, // late, and ahead: does not change the token
		}, 7},
		{"counters differ: the others are raised", 3, -1, set(0, 1, 2), []step{
			{event: "grant", node: 0, counter: 7},
			{event: "grant", node: 1, counter: 9, raise: set(0)},
			{event: "accept", node: 0, outcome: won},
		}, 9},
		{"a late grant is asked, too, though its counter is the token already", 3, -1, set(0, 1, 2), []step{
			{event: "grant", node: 0, counter: 7},
			{event: "grant", node: 1, counter: 9, raise: set(0)},
			{event: "grant", node: 2, counter: 9, raise: set(2)},
			{event: "refuse", node: 0},
			{event: "accept", node: 2, outcome: won},
		}, 9},
		{"a late grant that is ahead cannot agree", 3, -1, set(0, 1, 2), []step{
			{event: "grant", node: 0, counter: 7},
			{event: "grant", node: 1, counter: 9, raise: set(0)},
			{event: "grant", node: 2, counter: 10},
			{event: "refuse", node: 0, outcome: lost},
		}, 9},
		{"while others may still grant, one refusal is not the end", 3, -1, set(0, 1, 2), []step{
			{event: "grant", node: 0, counter: 7},
			{event: "grant", node: 1, counter: 9, raise: set(0)},
			{event: "refuse", node: 0},
			{event: "held", node: 2, outcome: lost},
		}, 9},
		{"one raise of two is enough", 5, -1, set(0, 1, 2, 3, 4), []step{
			{event: "grant", node: 0, counter: 5},
			{event: "grant", node: 1, counter: 9},
			{event: "grant", node: 2, counter: 9, raise: set(0)},
			{event: "accept", node: 0, outcome: won},
		}, 9},
		{"a majority denies", 5, -1, set(0, 1, 2, 3, 4), []step{
			{event: "held", node: 0},
			{event: "deny", node: 1},
			{event: "grant", node: 2, counter: 1},
			{event: "held", node: 3, outcome: lost},
		}, 0},
		{"of four, three are needed", 4, -1, set(0, 1, 2, 3), []step{
			{event: "grant", node: 0, counter: 1},
			{event: "grant", node: 1, counter: 1},
			{event: "deny", node: 2},
			{event: "deny", node: 3, outcome: lost},
		}, 0},
		{"one node", 1, -1, set(0), []step{{event: "grant", node: 0, counter: 1, outcome: won}}, 1},
		{"in order: the first grants, then all are asked", 3, 1, set(1), []step{
			{event: "grant", node: 1, counter: 4, acquire: set(0, 2)},
			{event: "held", node: 0},
			{event: "grant", node: 2, counter: 4, outcome: won},
		}, 4},
		{"in order: the first is held, nobody else is asked", 3, 2, set(2), []step{
			{event: "held", node: 2, outcome: lost},
		}, 0},
		{"in order: the first fails, the next takes its place", 3, 2, set(2), []step{
			{event: "deny", node: 2, acquire: set(0)},
			{event: "grant", node: 0, counter: 4, acquire: set(1)},
			{event: "grant", node: 1, counter: 4, outcome: won},
		}, 4},
		{"in order: the first is slow, and counts when it answers", 3, 0, set(0), []step{
			{event: "skip", acquire: set(1)},
			{event: "skip", acquire: set(2)},
			{event: "skip"}, // all have been asked
			{event: "grant", node: 0, counter: 4},
			{event: "grant", node: 2, counter: 4, outcome: won},
		}, 4},
		{"in order: all fail", 3, 0, set(0), []step{
			{event: "deny", node: 0, acquire: set(1)},
			{event: "deny", node: 1, outcome: lost},
		}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newVoting(tt.n, tt.first)
			if e.asked != tt.ask {
				t.Errorf("asks %b first, want %b", e.asked, tt.ask)
			}
			for n, s := range tt.steps {
				var acquire, raise nodeSet
				switch s.event {
				case "grant":
					acquire, raise = e.grant(s.node, s.counter)
				case "deny", "held":
					acquire = e.deny(s.node, s.event == "held")
				case "skip":
					acquire = e.skip()
				default:
					e.raise(s.node, s.event == "accept")
				}
				if got := e.outcome(); acquire != s.acquire || raise != s.raise || got != s.outcome {
					t.Errorf("step %d: asks %b, raises %b, outcome %d; want %b, %b, %d", n+1, acquire, raise, got, s.acquire,
						s.raise, s.outcome)
				}
			}
			if e.token != tt.token {
				t.Errorf("token %d, want %d", e.token, tt.token)
			}
		})
	}
}
