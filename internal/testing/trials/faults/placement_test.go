package faults

import (
	"fmt"
	"slices"
)

// placement says how many servers a lock has, and how many of them a fault hits.
type placement struct{ nodes, hit int }

var (
	// Rounds take the placements of a class in turn.
	placements     = [][]placement{{{1, 1}}, {{3, 1}, {5, 2}}, {{3, 2}, {5, 3}}, {{3, 3}, {5, 5}}}
	placementNames = []string{"single", "minority", "majority", "all"}
)

// class returns the index of p in placements.
func (p placement) class() int {
	return slices.IndexFunc(placements, func(same []placement) bool { return slices.Contains(same, p) })
}

func (p placement) String() string {
	if p.nodes == 1 {
		return "single"
	}
	return fmt.Sprintf("%d of %d", p.hit, p.nodes)
}
