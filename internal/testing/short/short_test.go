package short_test

import (
	"flag"
	"slices"
	"testing"

	"github.com/golocker/locker/internal/testing/short"
)

// Part returns all elements without the flag. With the flag it returns n different elements, the same ones every time.
func TestPart(t *testing.T) {
	before := flag.Lookup("test.short").Value.String()
	defer func() { _ = flag.Set("test.short", before) }()
	all := []string{"a", "b", "c", "d", "e"}

	_ = flag.Set("test.short", "false")
	if part := short.Part(t, 2, all); !slices.Equal(part, all) {
		t.Errorf("without -short: got %v, want all", part)
	}
	_ = flag.Set("test.short", "true")
	for n := range len(all) + 2 {
		part := short.Part(t, n, all)
		if again := short.Part(t, n, all); !slices.Equal(part, again) {
			t.Errorf("got %v, then %v", part, again)
		}
		distinct := slices.Compact(slices.Sorted(slices.Values(part)))
		if want := min(n, len(all)); len(part) != want || len(distinct) != want {
			t.Errorf("got %v, want %d different ones", part, want)
		}
	}
}
