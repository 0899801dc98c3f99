//go:build unix

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guardArg is the hidden first argument that makes this program a guard: the process between the one that holds the lock and
// the command.
//
// It is there for what no process can do for itself. If the holder is killed with SIGKILL, is stopped, or hangs, the guard
// still ends the command in time; if the guard is killed, the holder does. PR_SET_PDEATHSIG alone does not reach
// grandchildren, is lost when a set-uid program is executed, and does nothing for a holder that is merely stopped.
const guardArg = "__guard"

// guard runs one command and sees to its end and that of all that it starts.
type guard struct {
	news *os.File // to the holder
	loss *os.File // the end of the command's LOCKER_FD that nobody writes to

	onLost string
	grace  time.Duration
	killBy time.Time // when the lock may be somebody else's
	stopBy time.Time // when the grace is over; zero: it has not begun

	deaths chan death
	group  int // of the command, and its process id
	lost   bool
	exited bool
	code   int  // of the command's exit
	nobody bool // no child is left
}

// death is what wait4 says of a child.
type death struct {
	pid    int // 0: there are no children
	status unix.WaitStatus
}

// guardMain is the guard's main function. args are the numbers of the files through which it hears and tells.
func guardMain(args []string) int {
	if len(args) != 2 {
		return exitUsage
	}
	orders, newsOut := inherited(args[0]), inherited(args[1])
	if orders == nil || newsOut == nil {
		return exitUsage
	}
	// The kernel sends the command the signal of its parent's death when the *thread* that started it ends. This one
	// does not end before the process.
	runtime.LockOSThread()
	adoptOrphans()
	// Signals are for the holder, which passes them on. They are caught, not ignored: the command would inherit that.
	discard := make(chan os.Signal, 1)
	signal.Notify(discard, heeded()...)

	g := &guard{news: newsOut, deaths: make(chan death)}
	heard := receive[order](orders)
	_ = send(g.news, news{Is: isReady})
	first, ok := <-heard
	if !ok || first.Do != doStart {
		return 0 // the lock was lost, or the end has come, before there was a command
	}
	if err := g.start(first); err != nil {
		_ = send(g.news, *err)
		return 0
	}
	_ = send(g.news, news{Is: isStarted, Pid: g.group})
	g.watch(heard)
	_ = send(g.news, news{Is: isOver, Code: g.code})
	return 0
}

func inherited(number string) *os.File {
	fd, err := strconv.Atoi(number)
	if err != nil {
		return nil
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "pipe "+number)
}

// start starts the command, unless its time is over before it has begun.
func (g *guard) start(o order) *news {
	g.onLost, g.grace, g.killBy = o.OnLost, o.Grace, o.KillBy.time()
	if !time.Now().Before(g.warnAt()) {
		return &news{Is: isFailed, Code: exitLost, Text: "the lock was granted too late, with too little of its time left"}
	}
	// The command's end of the pipe gets whatever number is free: 3 may be in use by who runs locker, for a job server or a
	// socket, and then it is the command's, too.
	r, w, err := os.Pipe()
	if err != nil {
		return &news{Is: isFailed, Code: exitOSErr, Text: err.Error()}
	}
	g.loss = w
	fd := int(r.Fd())
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
		return &news{Is: isFailed, Code: exitOSErr, Text: err.Error()}
	}
	g.group, err = syscall.ForkExec(o.Path, o.Args, &syscall.ProcAttr{
		Env:   append(os.Environ(), "LOCKER_FD="+strconv.Itoa(fd)),
		Files: []uintptr{0, 1, 2},
		Sys:   dieWithParent(&syscall.SysProcAttr{Setpgid: true}),
	})
	_ = r.Close()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &news{Is: isFailed, Code: exitNotFound, Text: fmt.Sprintf("%s: %v", o.Path, err)}
	case err != nil:
		return &news{Is: isFailed, Code: exitNotRunnable, Text: fmt.Sprintf("%s: %v", o.Path, err)}
	}
	// The guard must not keep open what the command closes: a pipe's reader would wait for its end.
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		_ = f.Close()
	}
	go g.reap()
	return nil
}

// warnAt is when the command is told to end if no renewal has come by then.
func (g *guard) warnAt() time.Time {
	if g.onLost == onLostKill {
		return g.killBy
	}
	return g.killBy.Add(-g.grace)
}

// reap waits for children: the command, and orphans that it left behind.
func (g *guard) reap() {
	for {
		var status unix.WaitStatus
		switch pid, err := unix.Wait4(-1, &status, unix.WUNTRACED, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			g.deaths <- death{}
			return
		default:
			g.deaths <- death{pid, status}
		}
	}
}

// watch returns when the command and all that it started are gone.
func (g *guard) watch(heard <-chan order) {
	for !g.over() {
		timer := time.NewTimer(time.Until(g.next()))
		select {
		case o, ok := <-heard:
			if !ok { // the holder is gone, and with it who renews the lock
				heard = nil
				g.orphaned()
				break
			}
			g.obey(o)
		case d := <-g.deaths:
			g.bury(d)
		case <-timer.C:
		}
		timer.Stop()
		now := time.Now()
		if !now.Before(g.warnAt()) {
			g.lose()
		}
		if g.killing(now) {
			g.signalAll(unix.SIGKILL)
		}
	}
}

func (g *guard) over() bool {
	return g.exited && (g.nobody || !tracksOrphans) && errors.Is(unix.Kill(-g.group, 0), unix.ESRCH)
}

// next is when there is something to do if nothing happens before.
func (g *guard) next() time.Time {
	now := time.Now()
	if g.exited || g.killing(now) { // nobody says when a stranger's child has gone
		return now.Add(5 * time.Millisecond)
	}
	next := g.warnAt()
	if g.lost {
		next = g.killBy
		if g.onLost == onLostNotify {
			next = now.Add(time.Hour)
		}
	}
	if !g.stopBy.IsZero() && g.stopBy.Before(next) {
		next = g.stopBy
	}
	return next
}

// killing says whether the time for SIGKILL has come.
func (g *guard) killing(now time.Time) bool {
	if !g.stopBy.IsZero() && !now.Before(g.stopBy) {
		return true
	}
	return g.lost && g.onLost != onLostNotify && !now.Before(g.killBy)
}

func (g *guard) obey(o order) {
	switch o.Do {
	case doExtend:
		if !g.lost { // what is being stopped stays so
			g.killBy = o.KillBy.time()
		}
	case doSignal:
		if !g.exited {
			_ = unix.Kill(-g.group, syscall.Signal(o.Signal))
		}
	case doStop:
		g.stop()
	case doLost:
		g.lose()
	}
}

// lose tells the command that the lock is lost, in the way it wants to be told.
func (g *guard) lose() {
	if g.lost {
		return
	}
	g.lost = true
	_ = send(g.news, news{Is: isLost})
	_ = g.loss.Close()
	switch g.onLost {
	case onLostTerm:
		g.stop()
	case onLostKill:
		g.stopBy = time.Now()
	}
}

// orphaned is for when the holder is gone. Nobody renews the lock any more, and nobody tells anybody: a command that wanted to
// be told only is ended, too.
func (g *guard) orphaned() {
	if g.onLost == onLostNotify {
		g.onLost = onLostTerm
	}
	g.lose()
	g.stop()
}

// stop asks the command to end, and begins the grace. A command that is stopped has to go on to hear it.
func (g *guard) stop() {
	if g.stopBy.IsZero() {
		g.stopBy = time.Now().Add(g.grace)
	}
	g.signalAll(unix.SIGTERM)
	g.signalAll(unix.SIGCONT)
}

// signalAll reaches the command's group and the orphans that have left it. What is still under a living parent elsewhere is
// reached when that has ended. The number of a group is not given away while it has members, so no stranger is hit.
func (g *guard) signalAll(sig syscall.Signal) {
	_ = unix.Kill(-g.group, sig)
	for _, pid := range children() {
		if pid != g.group {
			_ = unix.Kill(pid, sig)
		}
	}
}

// bury takes notice of the end of a child, or that the command was stopped.
func (g *guard) bury(d death) {
	switch {
	case d.pid == 0:
		g.nobody = true
	case d.pid != g.group:
	case d.status.Stopped():
		_ = send(g.news, news{Is: isStopped, Code: int(d.status.StopSignal())})
	case d.status.Exited(), d.status.Signaled():
		g.exited, g.code = true, d.status.ExitStatus()
		if d.status.Signaled() {
			g.code = exitSignal + int(d.status.Signal())
		}
		g.stop() // what it has left behind
	}
}
