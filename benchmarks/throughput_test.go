package main

import (
	"fmt"
	"testing"
)

func TestLogTicksIncludeTheRange(t *testing.T) {
	for _, test := range []struct {
		low, high float64
		want      string
	}{
		{1600, 70_000, "[1k 2k 5k 10k 20k 50k 100k]"},
		{900, 1000, "[500 1k]"},
		{2000, 2000, "[2k]"},
	} {
		var labels []string
		for _, tick := range logTicks(test.low, test.high) {
			labels = append(labels, tick.Label)
		}
		if got := fmt.Sprint(labels); got != test.want {
			t.Errorf("%g to %g: %s, want %s", test.low, test.high, got, test.want)
		}
	}
}
