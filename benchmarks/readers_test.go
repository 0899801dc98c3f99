package main

import (
	"testing"
	"time"
)

func TestTimesOfReadersAndWriters(t *testing.T) {
	crews := func(spans ...[]span) (all []*deeds) { // the last one is of a writer
		for i, held := range spans {
			done := new(deeds)
			of := reader
			if i == len(spans)-1 {
				of = writer
			}
			done[of].Held = held
			all = append(all, done)
		}
		return all
	}
	for _, test := range []struct {
		name             string
		all              []*deeds
		reading, writing time.Duration
		overlaps         int
	}{
		{"readers beside each other, then a writer", crews([]span{{10, 20}}, []span{{15, 30}}, []span{{30, 50}}), 20, 20, 0},
		{"before the begin and after the end", crews([]span{{-10, 5}, {90, 120}}, []span{{50, 60}}), 15, 10, 0},
		{"a writer comes beside two readers", crews([]span{{10, 20}}, []span{{10, 20}}, []span{{19, 40}}), 10, 21, 1},
		{"two readers come beside a writer", crews([]span{{10, 20}}, []span{{10, 20}}, []span{{5, 11}}), 10, 6, 2},
	} {
		held, overlaps := sweep(test.all, span{0, 100})
		if held != [2]time.Duration{test.reading, test.writing} || overlaps != test.overlaps {
			t.Errorf("%s: held %v, %d overlaps, want %v, %v, %d", test.name, held, overlaps, test.reading, test.writing,
				test.overlaps)
		}
	}
}
