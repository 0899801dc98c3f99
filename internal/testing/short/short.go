// Package short says what go test -short leaves out. Without the flag all tests run in full.
package short

import (
	"hash/fnv"
	"testing"
)

// Part returns n elements of all with -short, and all of them without it. The elements are spread evenly. The name of
// the test decides which element is the first. So tests take different parts, and a test that failed takes the same
// part again.
func Part[E any](t testing.TB, n int, all []E) []E {
	if !testing.Short() || n >= len(all) {
		return all
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(t.Name()))
	first := int(h.Sum32() % uint32(len(all)))
	part := make([]E, n)
	for i := range part {
		part[i] = all[(first+i*len(all)/n)%len(all)]
	}
	return part
}
