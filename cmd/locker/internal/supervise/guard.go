//go:build unix

package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/golocker/locker/cmd/locker/internal/exit"
)

// guardArg is the hidden first argument that makes this program a guard: the process between the holder of the lock and
// the command.
//
// The guard ends the command in time even if the holder is killed with SIGKILL, is stopped, or hangs. If the guard is
// killed, the holder ends the command. PR_SET_PDEATHSIG alone would not be enough: it does not reach grandchildren, is
// lost when a set-uid program is executed, and has no effect if the holder is only stopped.
const guardArg = "__guard"

// guard runs one command, and ends the command and all processes that it starts.
type guard struct {
	news *os.File // to the holder
	loss *os.File // the writing end of the command's LOCKER_FD; nothing is written to it

	onLost string
	grace  time.Duration
	killBy time.Time // when somebody else may get the lock
	stopBy time.Time // the end of the grace period; zero if it has not begun

	deaths chan death
	group  int // of the command, and its process id
	lost   bool
	exited bool
	code   int  // of the command's exit
	nobody bool // no child is left
}

// death is a result of wait4.
type death struct {
	pid    int // 0: there are no children
	status unix.WaitStatus
}

// Main is the main function of the processes that Run and Elect start: it ends the process if args, those of the
// process, are of one of them. The program must call it first.
func Main(args []string) {
	if len(args) > 1 {
		switch args[1] {
		case guardArg:
			os.Exit(guardMain(args[2:]))
		case commandArg:
			os.Exit(commandMain(args[2:]))
		}
	}
}

// guardMain is the guard's main function. args are the file descriptors of the pipes from and to the holder.
func guardMain(args []string) int {
	if len(args) != 2 {
		return exit.Usage
	}
	orders, newsOut := inherited(args[0]), inherited(args[1])
	if orders == nil || newsOut == nil {
		return exit.Usage
	}
	// The kernel sends the parent-death signal when the *thread* that started the command ends. This thread lives as
	// long as the process.
	runtime.LockOSThread()
	adoptOrphans()
	// The holder handles signals and passes them on. The guard catches them instead of ignoring them, because the
	// command would inherit ignored signals.
	discard := make(chan os.Signal, 1)
	signal.Notify(discard, heeded()...)

	g := &guard{news: newsOut, deaths: make(chan death)}
	heard := receive[order](orders)
	_ = send(g.news, news{Is: isReady})
	first, ok := <-heard
	if !ok || first.Do != doStart {
		return 0 // the lock was lost, or the holder has ended, before the command was started
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
		return &news{Is: isFailed, Code: exit.Lost,
			Text: "the lock was granted too late, with too little of its time left"}
	}
	// The command's end of the pipe gets a number that is free. The program that runs locker may have passed on file 3,
	// for a job server or a socket, and the command inherits that, too.
	r, w, err := os.Pipe()
	if err != nil {
		return &news{Is: isFailed, Code: exit.OSErr, Text: err.Error()}
	}
	g.loss = w
	fd := int(r.Fd())
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
		return &news{Is: isFailed, Code: exit.OSErr, Text: err.Error()}
	}
	path, args, err := underOwnPID(o.Path, o.Args)
	if err != nil {
		return &news{Is: isFailed, Code: exit.OSErr, Text: err.Error()}
	}
	g.group, err = syscall.ForkExec(path, args, &syscall.ProcAttr{
		Env:   append(os.Environ(), "LOCKER_FD="+strconv.Itoa(fd)),
		Files: []uintptr{0, 1, 2},
		Sys:   dieWithParent(&syscall.SysProcAttr{Setpgid: true}),
	})
	_ = r.Close()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &news{Is: isFailed, Code: exit.NotFound, Text: fmt.Sprintf("%s: %v", o.Path, err)}
	case err != nil:
		return &news{Is: isFailed, Code: exit.NotRunnable, Text: fmt.Sprintf("%s: %v", o.Path, err)}
	}
	// The guard must not keep open what the command closes: a pipe's reader would wait for its end.
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		_ = f.Close()
	}
	go g.reap()
	return nil
}

// commandArg is the hidden first argument that makes this program set the variables of systemd, and then become the
// command: it is the first process that knows the command's process id.
const commandArg = "__command"

// pidVariables say which process the sockets and the watchdog of a service are for. They name the holder, because
// systemd has started that. The command would find another process id there, and would use neither.
var pidVariables = []string{"LISTEN_PID", "WATCHDOG_PID"}

// underOwnPID returns what to execute so that the command finds its own process id in those variables, if they are for
// the holder.
func underOwnPID(path string, args []string) (string, []string, error) {
	holder := strconv.Itoa(os.Getppid())
	if !slices.ContainsFunc(pidVariables, func(name string) bool { return os.Getenv(name) == holder }) {
		return path, args, nil
	}
	exe, err := self()
	return exe, append([]string{"locker", commandArg, holder, path}, args...), err
}

// commandMain becomes the command that underOwnPID was given.
func commandMain(args []string) int {
	if len(args) < 3 {
		return exit.Usage
	}
	for _, name := range pidVariables {
		if os.Getenv(name) == args[0] {
			_ = os.Setenv(name, strconv.Itoa(os.Getpid()))
		}
	}
	err := syscall.Exec(args[1], args[2:], os.Environ())
	fmt.Fprintf(os.Stderr, "locker: %s: %v\n", args[1], err)
	return exit.NotRunnable
}

// warnAt is when the command is asked to end unless a renewal arrives.
func (g *guard) warnAt() time.Time {
	if g.onLost == Kill {
		return g.killBy
	}
	return g.killBy.Add(-g.grace)
}

// reap waits for children: the command and the orphans that it leaves behind.
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

// watch returns when the command and all processes that it started have ended.
func (g *guard) watch(heard <-chan order) {
	for !g.over() {
		timer := time.NewTimer(time.Until(g.next()))
		select {
		case o, ok := <-heard:
			if !ok { // the holder has ended, so nobody renews the lock
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

// next is the time of the next action if no event occurs before.
func (g *guard) next() time.Time {
	now := time.Now()
	if g.exited || g.killing(now) { // there is no event when a process that is not a child ends
		return now.Add(5 * time.Millisecond)
	}
	next := g.warnAt()
	if g.lost {
		next = g.killBy
		if g.onLost == Notify {
			next = now.Add(time.Hour)
		}
	}
	if !g.stopBy.IsZero() && g.stopBy.Before(next) {
		next = g.stopBy
	}
	return next
}

// killing reports whether it is time for SIGKILL.
func (g *guard) killing(now time.Time) bool {
	if !g.stopBy.IsZero() && !now.Before(g.stopBy) {
		return true
	}
	return g.lost && g.onLost != Notify && !now.Before(g.killBy)
}

func (g *guard) obey(o order) {
	switch o.Do {
	case doExtend:
		if !g.lost { // a command that is being stopped is stopped even if the lock is renewed
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

// lose notifies the command of the loss, as --on-lost says.
func (g *guard) lose() {
	if g.lost {
		return
	}
	g.lost = true
	_ = send(g.news, news{Is: isLost})
	_ = g.loss.Close()
	switch g.onLost {
	case Term:
		g.stop()
	case Kill:
		g.stopBy = time.Now()
	}
}

// orphaned handles the end of the holder. Nobody renews the lock any more, so the command is ended even with
// --on-lost=notify.
func (g *guard) orphaned() {
	if g.onLost == Notify {
		g.onLost = Term
	}
	g.lose()
	g.stop()
}

// stop sends SIGTERM and begins the grace period. It also sends SIGCONT, because a stopped process does not handle
// SIGTERM.
func (g *guard) stop() {
	if g.stopBy.IsZero() {
		g.stopBy = time.Now().Add(g.grace)
	}
	g.signalAll(unix.SIGTERM)
	g.signalAll(unix.SIGCONT)
}

// signalAll signals the command's process group and the orphans outside it. A process outside the group whose parent
// still lives is signalled after its parent has ended. The kernel does not reuse the number of a group that has
// members, so no other process is signalled.
func (g *guard) signalAll(sig syscall.Signal) {
	_ = unix.Kill(-g.group, sig)
	for _, pid := range children() {
		if pid != g.group {
			_ = unix.Kill(pid, sig)
		}
	}
}

// bury records that a child has ended or that the command was stopped.
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
			g.code = exit.Signal + int(d.status.Signal())
		}
		g.stop() // ends the processes that it left behind
	}
}
