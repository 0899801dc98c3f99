//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/lockertrace"
)

// holder holds the lock while the command runs. It renews the lock, informs the guard, and passes on signals.
type holder struct {
	app     *app
	opts    *runOptions
	store   string // which backend
	signals chan os.Signal
	renewed chan struct{}
	last    atomic.Pointer[lockertrace.Renewal]
	lease   locker.Lease

	guard    *exec.Cmd
	orders   *os.File // to the guard
	heard    <-chan news
	terminal *terminal // of the command
	noInput  bool      // the command's standard input is empty

	group     int // the command's process group; 0 before its start and after its end
	lost      error
	suspended bool // SIGTSTP was passed on
}

// run takes the lock and runs the command. It returns nil if the command exits with 0, and otherwise an error with the
// exit code and without a text.
func (a *app) run(ctx context.Context, o *runOptions) error {
	l, signals, err := a.prepare(ctx, o)
	if err != nil {
		return err
	}
	defer signal.Stop(signals)
	h := &holder{
		app: a, opts: o, store: a.used.Backend, signals: signals, renewed: make(chan struct{}, 1), terminal: findTerminal(),
	}
	if err := h.acquire(ctx, l); err != nil {
		return err
	}
	err = h.hold()
	return h.release(err)
}

// prepare checks the options, begins to catch signals, and opens the store.
func (a *app) prepare(ctx context.Context, o *runOptions) (*config.Opened, chan os.Signal, error) {
	c, err := a.config()
	if err != nil {
		return nil, nil, err
	}
	if err := o.check(c); err != nil {
		return nil, nil, err
	}
	if _, err := self(); err != nil { // the guard could not be started
		return nil, nil, &exitError{exitOSErr, err, ""}
	}
	signals := make(chan os.Signal, 16)
	// SIGPIPE: locker continues if nobody reads its messages
	signal.Notify(signals, append(heeded(), unix.SIGPIPE)...)
	l, err := a.open(ctx, c)
	if err != nil {
		signal.Stop(signals)
		return nil, nil, err
	}
	if l.InProcess() {
		a.note("a lock in %s excludes nobody outside this process", c.Backend)
	}
	a.opened = append(a.opened, l)
	return l, signals, nil
}

// hold runs the command under the lock, and returns when all its processes have ended.
func (h *holder) hold() error {
	adoptOrphans() // if the guard dies
	if err := h.startGuard(); err != nil {
		return &exitError{exitOSErr, err, "is the system out of processes or files?"}
	}
	defer h.endGuard()
	if started, err := h.startCommand(); !started {
		return err
	}
	return h.watch()
}

// startGuard starts this program a second time, as the guard. The guard's ends of the pipes keep their numbers: the
// command may inherit other files under the numbers 3 and 4.
func (h *holder) startGuard() error {
	ordersIn, ordersOut, err := os.Pipe()
	if err != nil {
		return err
	}
	newsIn, newsOut, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _, _ = ordersIn.Close(), newsOut.Close() }()
	args := []string{"locker", guardArg}
	for _, f := range []*os.File{ordersIn, newsOut} {
		fd := f.Fd()
		if _, err := unix.FcntlInt(fd, unix.F_SETFD, 0); err != nil {
			return err
		}
		args = append(args, strconv.Itoa(int(fd)))
	}
	exe, err := self()
	if err != nil {
		return err
	}
	h.guard = &exec.Cmd{
		Path: exe, Args: args, Env: h.environ(),
		Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, // Ctrl-C must not end the guard
	}
	if !h.noInput {
		h.guard.Stdin = os.Stdin
	}
	h.orders, h.heard = ordersOut, receive[news](newsIn)
	return h.guard.Start()
}

// environ is the command's environment.
func (h *holder) environ() []string {
	return append(slices.Clone(h.app.environ),
		"LOCKER_KEY="+strings.Join(h.opts.keys, "\n"),
		"LOCKER_FENCE="+h.fences(),
		"LOCKER_STORE="+h.store)
}

// startCommand orders the guard to start the command, unless a signal arrives or the lock is lost before. The guard is
// ready by then and starts the command at once.
func (h *holder) startCommand() (started bool, err error) {
	for {
		select {
		case n := <-h.heard:
			if n.Is != isReady {
				return false, &exitError{exitSoftware, errors.New("the guard process of the command has died"), ""}
			}
			if err := h.pendingEnd(); err != nil {
				return false, err
			}
			if err := h.lease.Err(); err != nil {
				return false, h.lostBefore(err)
			}
			return true, send(h.orders, order{
				Do: doStart, Path: h.opts.path, Args: h.opts.args, OnLost: h.opts.onLost, Grace: h.opts.grace,
				KillBy: instantOf(h.killBy()),
			})
		case sig := <-h.signals:
			if slices.Contains(ending, sig) {
				return false, endedBy(sig)
			}
		case <-h.lease.Done():
			return false, h.lostBefore(h.lease.Err())
		}
	}
}

// watch passes renewals, losses and signals to the guard until the guard reports the end of the command.
func (h *holder) watch() error {
	ended := h.lease.Done()
	last := h.killBy()
	// A guard that has not killed the command by this time is stopped or hangs.
	late := h.opts.margin() / 2
	backstop := time.NewTimer(time.Until(last) + late)
	defer backstop.Stop()
	for {
		select {
		case n, ok := <-h.heard:
			if !ok {
				h.sweep()
				if h.lost != nil {
					return h.verdict(exitSoftware)
				}
				return &exitError{exitSoftware,
					errors.New("the guard process of the command has died: the command was killed"), ""}
			}
			if n.Is == isOver {
				h.group = 0
				h.terminal.take()
				return h.verdict(n.Code)
			}
			if err := h.hear(n); err != nil {
				return err
			}
		case sig := <-h.signals:
			h.pass(sig.(syscall.Signal))
		case <-h.renewed:
			if by := h.killBy(); h.lost == nil && by.After(last) {
				last = by
				backstop.Reset(time.Until(by) + late)
				_ = send(h.orders, order{Do: doExtend, KillBy: instantOf(by)})
			}
		case <-ended:
			ended = nil
			h.lose(h.lease.Err())
			_ = send(h.orders, order{Do: doLost})
		case <-backstop.C:
			if h.opts.onLost != onLostNotify {
				h.lose(h.lease.Err())
				_ = h.guard.Process.Kill()
				if h.group != 0 {
					_ = unix.Kill(-h.group, unix.SIGKILL)
				}
			}
		}
	}
}

// hear handles a message from the guard. An error means that the command could not be started.
func (h *holder) hear(n news) error {
	switch n.Is {
	case isStarted:
		h.group = n.Pid
		h.terminal.give(h.group)
	case isFailed:
		return &exitError{n.Code, errors.New(n.Text), ""}
	case isLost:
		h.lose(h.lease.Err())
	case isStopped:
		h.stopped(syscall.Signal(n.Code))
	}
	return nil
}

// verdict returns the result of run, without that of Unlock.
func (h *holder) verdict(code int) error {
	if h.lost != nil {
		return &exitError{exitLost, fmt.Errorf("%q was lost while the command ran: %w", h.opts.key, h.lost),
			"check what it did"}
	}
	if code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// release unlocks, whatever the result so far. It takes one second at most.
func (h *holder) release(result error) error {
	switch err := h.lease.Unlock(context.Background()); {
	case err == nil:
	case result != nil && withExit(result).code == exitLost:
	case errors.Is(err, locker.ErrLost):
		return &exitError{exitLost, err, "somebody else may have had the lock while the command ran"}
	default:
		h.app.note("%s: the lock ends by itself within %v", told(err), h.opts.validity)
	}
	return result
}

// endGuard waits for the guard, which ends when its pipe is closed.
func (h *holder) endGuard() {
	_ = h.orders.Close()
	_ = h.guard.Wait()
}

// sweep kills the processes that a dead guard left behind. The kernel has killed the command itself.
func (h *holder) sweep() {
	if h.group != 0 {
		_ = unix.Kill(-h.group, unix.SIGKILL)
	}
	_ = h.guard.Wait()
	for pids := children(); len(pids) > 0; pids = children() {
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, 0, nil)
		}
	}
	h.terminal.take()
}
