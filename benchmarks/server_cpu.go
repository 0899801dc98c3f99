package main

import (
	"context"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/single"
)

// cpuGoroutines lock and unlock, each its own key.
const cpuGoroutines = 128

// serverCPU is what a lock and unlock costs a server, apart from reading and writing.
func serverCPU(s *servers, p plan) *Scenario {
	sc := &Scenario{Name: "server-cpu", Title: "Processor time of the server for a lock and unlock, in pipelines",
		Note: "Ratio: server CPU, to SET NX PX and a compare-and-delete script. All commands travel in pipelines, so " +
			"that reading and writing take little of the time. One at a time: 128 clients share a connection, and each " +
			"has one goroutine. Many at once: one client has 128 goroutines, and may join their commands. Redlock node: " +
			"a Redlock of one node. Native releases: releases by DELEX or DELIFEQ. Script p99.9: how long a script kept " +
			"the server.",
		Columns: []Column{{"server_us", "server CPU µs", 2}, {"commands", "commands", 1}, {"scripts", "scripts", 2},
			{"native", "native releases", 2}, {"trips", "round trips", 3}, {"script_p999_us", "script p99.9 µs", 0}},
		Primary: "server_us", Time: 4 * p.Cycles} // INFO is part of what is measured
	add := func(name, yardstick string, clients int, open func(drivers.Driver) (session, error)) {
		sc.Contestants = append(sc.Contestants, Contestant{Name: name, Yardstick: yardstick,
			Visit: func(ctx context.Context, d time.Duration) (Figures, error) {
				return cycles(ctx, s, gathered(cpuGoroutines, clients, open), cpuGoroutines, false, d)
			}})
	}
	add(cpuYardstick, "", cpuGoroutines, rawOver)
	for _, c := range cpuContestants {
		add(c.name+", one at a time", cpuYardstick, cpuGoroutines, c.open)
		add(c.name+", many at once", cpuYardstick, 1, c.open)
	}
	return sc
}

const cpuYardstick = "raw"

var cpuContestants = []struct {
	name string
	open func(drivers.Driver) (session, error)
}{{"locker/single", singleOver}, {"locker/Redlock node", redlockNodeOver}}

func rawOver(d drivers.Driver) (session, error) { return openRaw(driverCommands{d, func() {}}, nil) }

func singleOver(d drivers.Driver) (session, error) {
	return &lockerSession{single.New(d), nil, func() {}}, nil
}

func redlockNodeOver(d drivers.Driver) (session, error) {
	return redlockOver([]drivers.Driver{d}, func() {})
}
