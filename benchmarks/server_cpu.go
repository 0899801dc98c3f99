package main

import (
	"context"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/redlock"
	"github.com/golocker/locker/single"
)

const (
	// cpuGoroutines lock and unlock, each its own key.
	cpuGoroutines = 128
	// cpuCrowd is enough goroutines that a client fills its batches.
	cpuCrowd = 512
)

// serverCPU is what a lock and unlock costs a server, apart from reading and writing.
func serverCPU(s *servers, p plan) *Scenario {
	sc := &Scenario{Name: "server-cpu", Title: "Processor time of the server for a lock and unlock, in pipelines",
		Note: "Ratio: server CPU, to SET NX PX and a compare-and-delete script. All commands travel in pipelines, so " +
			"that reading and writing take little of the time. One at a time: 128 clients share a connection, and each " +
			"has one goroutine. 128 or 512 at once: one client has as many goroutines, and may join their commands. " +
			"Redlock node: a Redlock of one node. Guard: with the restart guard. Native releases: releases by DELEX or " +
			"DELIFEQ. Script p99.9: how long a script kept the server, which has a processor to itself meanwhile. " +
			"Counting: a script that only counts, for as long as one of 32 joined commands takes.",
		Columns: []Column{{"server_us", "server CPU µs", 2}, {"commands", "commands", 1}, {"scripts", "scripts", 2},
			{"native", "native releases", 2}, {"trips", "round trips", 3}, {"script_p999_us", "script p99.9 µs", 0}},
		Primary: "server_us", Time: 4 * p.Cycles} // INFO is part of what is measured
	add := func(name, yardstick string, goroutines, clients int, open func(drivers.Driver) (session, error)) {
		rounds, longer := p.Rounds, time.Duration(1)
		if goroutines == cpuCrowd {
			rounds, longer = p.FewRounds, 4 // a thousandth of the scripts should be more than one
		}
		sc.Contestants = append(sc.Contestants, Contestant{Name: name, Yardstick: yardstick, Rounds: rounds,
			Visit: func(ctx context.Context, d time.Duration) (Figures, error) {
				return cycles(ctx, s, gathered(goroutines, clients, open), goroutines, false, longer*d)
			}})
	}
	add(cpuYardstick, "", cpuGoroutines, cpuGoroutines, rawOver)
	add(cpuCounting, cpuYardstick, cpuCrowd, 1, busyOver)
	for _, c := range cpuContestants {
		add(c.name+", one at a time", cpuYardstick, cpuGoroutines, cpuGoroutines, c.open)
		add(c.name+", 128 at once", cpuYardstick, cpuGoroutines, 1, c.open)
		add(c.name+", 512 at once", cpuYardstick, cpuCrowd, 1, c.open)
		add(c.name+", guard, 512 at once", cpuYardstick, cpuCrowd, 1, c.guarded)
	}
	return sc
}

const (
	cpuYardstick = "raw"
	// cpuCounting says what the time of a script at worst is of the machine.
	cpuCounting = "counting, 512 at once"
)

var cpuContestants = []struct {
	name string
	// open opens a client, and guarded one with the restart guard.
	open, guarded func(drivers.Driver) (session, error)
}{{"locker/single", singleOver, guardedSingleOver}, {"locker/Redlock node", redlockNodeOver, guardedNodeOver}}

func rawOver(d drivers.Driver) (session, error) { return openRaw(driverCommands{d, func() {}}, nil) }

func singleOver(d drivers.Driver) (session, error) {
	return &lockerSession{single.New(d), nil, func() {}}, nil
}

// cpuGuard is the longest TTL under the restart guard.
const cpuGuard = time.Minute

func guardedSingleOver(d drivers.Driver) (session, error) {
	if err := single.Bootstrap(context.Background(), d, single.Guard(cpuGuard)); err != nil {
		return nil, err
	}
	return &lockerSession{single.New(d, single.Guard(cpuGuard)), nil, func() {}}, nil
}

func guardedNodeOver(d drivers.Driver) (session, error) {
	ds := []drivers.Driver{d}
	if err := redlock.Bootstrap(context.Background(), ds, redlock.Guard(cpuGuard)); err != nil {
		return nil, err
	}
	return redlockOver(ds, func() {}, redlock.Guard(cpuGuard))
}

func redlockNodeOver(d drivers.Driver) (session, error) {
	return redlockOver([]drivers.Driver{d}, func() {})
}
