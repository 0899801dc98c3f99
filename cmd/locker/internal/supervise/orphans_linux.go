package supervise

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tracksOrphans is true because descendants that lose their parent become children of this process.
const tracksOrphans = true

func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// dieWithParent makes the kernel kill the command if the guard is killed.
func dieWithParent(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	attr.Pdeathsig = syscall.SIGKILL
	return attr
}

// children returns the process ids of this process's children. It reads the list of all processes, because not every
// kernel has /proc/self/task/*/children.
func children() (pids []int) {
	names, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	self := strconv.Itoa(os.Getpid())
	for _, n := range names {
		pid, err := strconv.Atoi(n.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(proc + "/" + n.Name() + "/stat")
		if err != nil {
			continue
		}
		// "pid (name) state ppid …"; the name may contain any characters, even brackets
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 && string(fields[1]) == self {
			pids = append(pids, pid)
		}
	}
	return pids
}

// clock is the clock by which time.Now measures durations.
func clock() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}

// proc is the directory of the kernel's list of processes.
var proc = "/proc"

var errNoProc = errors.New("/proc is not mounted, and the processes of the command are found there: " +
	"mount -t proc proc /proc")

// self returns the path of the running program, even if its file has been replaced.
func self() (string, error) {
	exe := proc + "/self/exe"
	if _, err := os.Stat(exe); err != nil {
		return "", errNoProc
	}
	return exe, nil
}
