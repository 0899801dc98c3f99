package config

import (
	"errors"
	"fmt"
	"strings"
)

var errAgain = errors.New("given more than once: remove all but one")

// unknown is the error for a name that is none of known.
func unknown(what, name string, known []string) error {
	list := "known: " + strings.Join(known, ", ")
	switch near := nearest(name, known); {
	case !nameLike(name):
		return fmt.Errorf("unknown %s (%s)", what, list)
	case near != "":
		return fmt.Errorf("unknown %s %q: did you mean %s? (%s)", what, name, near, list)
	default:
		return fmt.Errorf("unknown %s %q (%s)", what, name, list)
	}
}

// nearest returns the name among known of which s is probably a misspelling: one typo per three letters, two at most.
// It ignores case.
func nearest(s string, known []string) string {
	best, name := 3, ""
	for _, k := range known {
		if d := distance(strings.ToLower(s), strings.ToLower(k)); d < best && d <= max(1, len(k)/3) {
			best, name = d, k
		}
	}
	return name
}

// distance is the number of letters to insert, delete, replace or swap with their neighbour to get from a to b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
