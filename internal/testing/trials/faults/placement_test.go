package faults

import "fmt"

// placement says how many servers a lock has, and how many of them a fault hits.
type placement struct{ nodes, hit int }

// placements has those that hit the only server, a minority, a majority and all. Rounds take those of a class in turn.
var placements = [][]placement{{{1, 1}}, {{3, 1}, {5, 2}}, {{3, 2}, {5, 3}}, {{3, 3}, {5, 5}}}

func (p placement) String() string {
	if p.nodes == 1 {
		return "single"
	}
	return fmt.Sprintf("%d of %d", p.hit, p.nodes)
}
