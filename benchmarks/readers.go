package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
)

const (
	readerCrews, readersOfCrew = 10, 30
	writers                    = 2
	readersHold                = 5 * time.Millisecond
	readersYardstick           = "sync.RWMutex"
)

// longHold is how long one of the readers holds once, in a visit that takes d. It is 10 seconds of a minute.
func longHold(d time.Duration) time.Duration { return d / 6 }

// readersAndWriters has many readers and few writers that want one key without pause.
func readersAndWriters(s *servers, p plan) *Scenario {
	sc := &Scenario{Name: "readers",
		Title: fmt.Sprintf("%d readers in %d processes, %d writers in %d more, one key of one Redis, hold %d ms",
			readerCrews*readersOfCrew, readerCrews, writers, writers, readersHold.Milliseconds()),
		Note: fmt.Sprintf("Ratio: acquisitions per second, to a sync.RWMutex with as many goroutines in this process. One "+
			"of the readers holds once for %v of the %v. Reading and writing: the time during which at least one reader, "+
			"or a writer, held the lock. Round trips and processor time are per acquisition. Overlaps: how often a process "+
			"had the lock beside the writer of another.", longHold(p.Readers), p.Readers),
		Columns: []Column{{"rate", "acquisitions/s", 0}, {"reads", "readers'/s", 1}, {"writes", "writers'/s", 1},
			{"writes_share", "writers' %", 2}, {"reading", "reading %", 1}, {"writing", "writing %", 1},
			{"read_wait_ms", "longest wait of a reader ms", 0}, {"write_wait_ms", "of a writer ms", 0},
			{"trips", "round trips", 2}, {"server_us", "server CPU µs", 1}, {"overlaps", "overlaps", 0}},
		Primary: "rate", Time: p.Readers, Rounds: min(3, p.Rare)}
	sc.Contestants = []Contestant{
		{Name: readersYardstick, Visit: visitRWMutex},
		{Name: "locker/rueidis", Yardstick: readersYardstick, Visit: visitCrews(s.one)},
	}
	return sc
}

func visitRWMutex(ctx context.Context, d time.Duration) (Figures, error) {
	c := crew{Readers: readerCrews * readersOfCrew, Writers: writers, Hold: readersHold, Long: longHold(d), For: d}
	var rw sync.RWMutex
	m := newMeter(nil)
	done, err := c.work(ctx, (&mutexSession{rw.RLocker()}).Lock, (&mutexSession{&rw}).Lock)
	if err != nil {
		return nil, err
	}
	return figuresOf([]*deeds{done}, m, d), nil
}

func visitCrews(one *redistest.Server) func(context.Context, time.Duration) (Figures, error) {
	return func(ctx context.Context, d time.Duration) (Figures, error) {
		group := []*redistest.Server{one}
		if err := flush(group); err != nil {
			return nil, err
		}
		c := crew{Addr: one.Addr(), Hold: readersHold, For: d}
		crews := slices.Repeat([]crew{c}, readerCrews+writers)
		for i := range crews {
			if i < readerCrews {
				crews[i].Readers = readersOfCrew
			} else {
				crews[i].Writers = 1
			}
		}
		crews[0].Long = longHold(d)
		var m *meter
		all, err := atWork(ctx, crews, func() { m = newMeter(group) })
		if err != nil {
			return nil, err
		}
		return figuresOf(all, m, d), nil
	}
}

// figuresOf stops m.
func figuresOf(all []*deeds, m *meter, d time.Duration) Figures {
	total := 0
	var within [2]float64
	var longest [2]time.Duration
	for _, done := range all {
		for of := range done {
			c := &done[of]
			total += c.All
			within[of] += float64(c.Within)
			longest[of] = max(longest[of], c.Longest)
		}
	}
	f, _ := m.stop(total)
	f["rate"] = (within[reader] + within[writer]) / d.Seconds()
	f["reads"], f["writes"] = within[reader]/d.Seconds(), within[writer]/d.Seconds()
	f["writes_share"] = 100 * within[writer] / max(1, within[reader]+within[writer])
	f["read_wait_ms"], f["write_wait_ms"] = micros(longest[reader])/1000, micros(longest[writer])/1000
	from := m.start.UnixNano()
	held, overlaps := sweep(all, span{from, from + d.Nanoseconds()})
	f["reading"], f["writing"] = 100*held[reader].Seconds()/d.Seconds(), 100*held[writer].Seconds()/d.Seconds()
	f["overlaps"] = float64(overlaps)
	return f
}

// sweep returns for how much of a time at least one reader, and at least one writer, held the lock. overlaps is how
// often a process got it beside the writer of another one, or a writer beside others.
func sweep(all []*deeds, during span) (held [2]time.Duration, overlaps int) {
	type edge struct {
		at       int64
		of, step int
	}
	var edges []edge
	for _, done := range all {
		for of := range done {
			for _, s := range done[of].Held {
				edges = append(edges, edge{s.From, of, 1}, edge{s.To, of, -1})
			}
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), a.step-b.step) })
	var holders [2]int
	last := during.From
	for _, e := range edges {
		now := min(max(e.at, during.From), during.To)
		for of, n := range holders {
			if n > 0 {
				held[of] += time.Duration(now - last)
			}
		}
		last = now
		holders[e.of] += e.step
		if e.step > 0 && holders[writer] > 0 && holders[reader]+holders[writer] > 1 {
			overlaps++
		}
	}
	return held, overlaps
}
