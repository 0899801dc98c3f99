package main

import (
	"os/exec"
	"runtime"

	"github.com/golocker/locker/internal/child"
)

// keepAwake keeps the processors from sleeping, by one process per processor that runs only when no other process
// wants to (SCHED_IDLE). Waking a processor of a virtual machine may take hundreds of µs, and most of what is
// measured here waits for a message while the processor has nothing else to do. Without chrt (util-linux), processors
// sleep.
func keepAwake() (end func(), ok bool) {
	if exec.Command("chrt", "--idle", "0", "true").Run() != nil { // there is no chrt, or the kernel refuses
		return func() {}, false
	}
	var idlers []*child.Process
	end = func() {
		for _, p := range idlers {
			p.Kill()
		}
	}
	for range runtime.NumCPU() {
		p, err := child.Spawn("chrt", "", nil, []string{"--idle", "0", "/bin/sh", "-c", "while :; do :; done"})
		if err != nil {
			end()
			return func() {}, false
		}
		idlers = append(idlers, p)
	}
	return end, true
}
