package history

import (
	"fmt"
	"maps"
	"slices"
)

// Quota (QUOTA) compares how often events have happened with how often they have to, so that a run with too few events
// does not count as a clean one.
func Quota(happened, needed map[string]int) (found []Violation) {
	for _, what := range slices.Sorted(maps.Keys(needed)) {
		if happened[what] < needed[what] {
			found = append(found, Violation{Rule: "QUOTA", Text: fmt.Sprintf(
				"%s: %d times, which shows little: %d are needed", what, happened[what], needed[what])})
		}
	}
	return found
}
