package main

import "time"

// plan has the durations and the numbers of rounds.
type plan struct {
	Rounds    int           `json:"rounds"`
	FewRounds int           `json:"few_rounds"` // for long visits, and for contestants without a goal
	Rare      int           `json:"rare"`       // rounds of contestants without a goal whose visits are long
	Sizes     []int         `json:"sizes"`      // numbers of goroutines
	Cycles    time.Duration `json:"cycles"`     // one visit, own keys
	Contended time.Duration `json:"contended"`  // one visit, one Redis
	Handover  time.Duration `json:"handover"`   // one visit, two clients
	Quorum    time.Duration `json:"quorum"`     // one visit, Redlock
	Crowd     time.Duration `json:"crowd"`      // one visit, contended Redlock
	Leases    int           `json:"leases"`
	Held      time.Duration `json:"held"` // one visit
	HeldTTL   time.Duration `json:"held_ttl"`
	Readers   time.Duration `json:"readers"` // one visit, readers and writers
}

var (
	quick = plan{
		Rounds: 5, FewRounds: 3, Rare: 1,
		Sizes: []int{16, 128, 512, 2048}, Cycles: 60 * time.Millisecond,
		Contended: time.Second, Handover: 300 * time.Millisecond,
		Quorum: 100 * time.Millisecond, Crowd: time.Second,
		Leases: 10_000, Held: 1200 * time.Millisecond, HeldTTL: 3 * time.Second,
		Readers: 3 * time.Second,
	}
	full = plan{
		Rounds: 11, FewRounds: 7, Rare: 7,
		Sizes: []int{16, 128, 512, 2048}, Cycles: 500 * time.Millisecond,
		Contended: 3 * time.Second, Handover: 3 * time.Second,
		Quorum: 500 * time.Millisecond, Crowd: 5 * time.Second,
		Leases: 10_000, Held: 10 * time.Second, HeldTTL: 3 * time.Second,
		Readers: time.Minute,
	}
	smoke = plan{
		Rounds: 1, FewRounds: 1, Rare: 1,
		Sizes: []int{16, 128}, Cycles: 5 * time.Millisecond,
		Contended: 20 * time.Millisecond, Handover: 20 * time.Millisecond,
		Quorum: 5 * time.Millisecond, Crowd: 60 * time.Millisecond,
		Leases: 200, Held: 200 * time.Millisecond, HeldTTL: 450 * time.Millisecond,
		Readers: 60 * time.Millisecond,
	}
)

// scenarios returns everything that can be measured over the network of s.
func scenarios(s *servers, p plan) []*Scenario {
	list := []*Scenario{oneGoroutine(s, p, false), oneGoroutine(s, p, true)}
	for _, n := range p.Sizes {
		list = append(list, ownKeys(s, p, n))
	}
	list = append(list, contended(s, p), contendedShapes(s, p), contendedLone(s, p), handover(s, p))
	for _, f := range failures {
		list = append(list, quorum(s, p, f))
	}
	list = append(list, contendedRedlock(s, p))
	if s.network == nil {
		list = append(list, serverCPU(s, p), leases(s, p), readersAndWriters(s, p))
	}
	return list
}
