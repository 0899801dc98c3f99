package main

import (
	"os/exec"
	"runtime"

	"github.com/golocker/locker/internal/testing/child"
)

// keepAwake keeps the processors from going to sleep, by a process for each that runs only when no other wants to
// (SCHED_IDLE). A virtual machine's processor may take hundreds of µs to be woken up, and most of what is measured here waits for the
// next message on one that has nothing else to do: without, the two bare commands took from 85 to 958 µs in visits of one
// evening, whoever made them. Where there is no chrt (util-linux), processors sleep as they like.
func keepAwake() (end func(), ok bool) {
	if exec.Command("chrt", "--idle", "0", "true").Run() != nil { // none, or it is refused
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
