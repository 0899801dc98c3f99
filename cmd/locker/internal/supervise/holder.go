//go:build unix

package supervise

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
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/once"
	"github.com/golocker/locker/semaphore"
)

// holder holds the lock while the command runs. It renews the lock, informs the guard, and passes on signals.
type holder struct {
	opts    *Options
	signals chan os.Signal
	renewed chan struct{}
	last    atomic.Pointer[lockertrace.Renewal]
	lease   locker.Lease

	guard    *exec.Cmd
	orders   *os.File // to the guard
	heard    <-chan news
	terminal *terminal // of the command

	group     int // the command's process group; 0 before its start and after its end
	lost      error
	suspended bool // SIGTSTP was passed on
}

// Run takes the lock and runs the command. It returns nil if the command exits with 0, and otherwise an error with the
// exit code and without a text. open opens the store, whose Locker the caller closes.
func Run(ctx context.Context, o *Options, open func() (locker.Locker, error)) error {
	l, signals, err := prepare(open)
	if err != nil {
		return err
	}
	defer signal.Stop(signals)
	h := &holder{opts: o, signals: signals, renewed: make(chan struct{}, 1), terminal: findTerminal()}
	if err := h.acquire(ctx, l); err != nil {
		return err
	}
	err = h.hold()
	if err == nil && o.Pass != nil {
		return o.Pass(h.lease)
	}
	return h.release(err)
}

// Acquire takes the lock as Run does, and passes it on.
func Acquire(ctx context.Context, o *Options, open func() (locker.Locker, error)) error {
	l, signals, err := prepare(open)
	if err != nil {
		return err
	}
	defer signal.Stop(signals)
	h := &holder{opts: o, signals: signals, renewed: make(chan struct{}, 1)}
	if err := h.acquire(ctx, l); err != nil {
		return err
	}
	return o.Pass(h.lease)
}

// prepare begins to catch signals, and opens the store.
func prepare(open func() (locker.Locker, error)) (locker.Locker, chan os.Signal, error) {
	if _, err := self(); err != nil { // the guard could not be started
		return nil, nil, exit.With(exit.OSErr, err, "")
	}
	signals := make(chan os.Signal, 16)
	// SIGPIPE: this process continues if nobody reads its messages
	signal.Notify(signals, append(heeded(), unix.SIGPIPE)...)
	l, err := open()
	if err != nil {
		signal.Stop(signals)
		return nil, nil, err
	}
	return l, signals, nil
}

// hold runs the command under the lock, and returns when all its processes have ended.
func (h *holder) hold() error {
	adoptOrphans() // if the guard dies
	if err := h.startGuard(); err != nil {
		return exit.With(exit.OSErr, err, "is the system out of processes or files?")
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
	if !h.opts.NoInput {
		h.guard.Stdin = os.Stdin
	}
	h.orders, h.heard = ordersOut, receive[news](newsIn)
	return h.guard.Start()
}

// environ is the command's environment.
func (h *holder) environ() []string {
	environ := append(slices.Clone(h.opts.Environ),
		"LOCKER_KEY="+strings.Join(h.opts.Keys, "\n"),
		"LOCKER_FENCE="+h.fences(),
		"LOCKER_STORE="+h.opts.Store)
	if !h.opts.Tick.IsZero() {
		environ = append(environ, "LOCKER_TICK="+h.opts.Tick.UTC().Format(time.RFC3339))
	}
	if p, ok := locker.LeaseAs[*semaphore.Permit](h.lease); ok {
		environ = append(environ, "LOCKER_SLOT="+strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Slots()), " ", "\n"), "[]"))
	}
	return environ
}

// startCommand orders the guard to start the command, unless a signal arrives or the lock is lost before. The guard is
// ready by then and starts the command at once.
func (h *holder) startCommand() (started bool, err error) {
	for {
		select {
		case n := <-h.heard:
			if n.Is != isReady {
				return false, exit.With(exit.Software, errors.New("the guard process of the command has died"), "")
			}
			if err := h.pendingEnd(); err != nil {
				return false, err
			}
			if err := h.lease.Err(); err != nil {
				return false, h.lostBefore(err)
			}
			return true, send(h.orders, order{
				Do: doStart, Path: h.opts.Path, Args: h.opts.Args, OnLost: h.opts.OnLost, Grace: h.opts.Grace,
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
	late := h.opts.Margin() / 2
	backstop := time.NewTimer(time.Until(last) + late)
	defer backstop.Stop()
	for {
		select {
		case n, ok := <-h.heard:
			if !ok {
				h.sweep()
				if h.lost != nil {
					return h.verdict(exit.Software)
				}
				return exit.With(exit.Software,
					errors.New("the guard process of the command has died: the command was killed"), "")
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
			if h.opts.OnLost != Notify {
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
		return exit.With(n.Code, errors.New(n.Text), "")
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
		return exit.With(exit.Lost, fmt.Errorf("%q was lost while the command ran: %w", h.opts.Key, h.lost),
			"check what it did")
	}
	if code != 0 {
		return &exit.Error{Code: code}
	}
	return nil
}

// release unlocks, whatever the result so far. It takes one second at most.
func (h *holder) release(result error) error {
	switch err := h.lease.Unlock(context.Background()); {
	case err == nil:
	case result != nil && exit.Of(result).Code == exit.Lost:
	case errors.Is(err, locker.ErrLost):
		return exit.With(exit.Lost, err, "somebody else may have had the lock while the command ran")
	default:
		h.opts.Note("%s: the lock ends by itself within %v", exit.Text(err), h.opts.Validity)
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

// acquire waits for the lock until a signal arrives.
func (h *holder) acquire(ctx context.Context, l locker.Locker) error {
	ctx, cancel := context.WithCancel(h.trace(ctx))
	defer cancel()
	type result struct {
		lease locker.Lease
		err   error
	}
	done := make(chan result, 1)
	go func() {
		lease, err := h.lock(ctx, l)
		done <- result{lease, err}
	}()
	var ended error
	for {
		select {
		case r := <-done:
			h.lease = r.lease
			if ended == nil {
				ended = h.pendingEnd()
			}
			switch {
			case ended == nil:
				return h.refused(r.err)
			case r.lease != nil: // the lock was granted at the same moment
				return h.release(ended)
			}
			return ended
		case sig := <-h.signals:
			switch {
			case sig == unix.SIGTSTP:
				stop()
			case slices.Contains(ending, sig) && ended == nil:
				ended = endedBy(sig)
				cancel()
			}
		}
	}
}

// refused adds advice to the error of Lock.
func (h *holder) refused(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, locker.ErrUnavailable): // also if the tick is claimed: by an attempt of this call, perhaps
		return err
	case errors.Is(err, once.ErrElsewhere):
		return exit.With(exit.Held, err, "")
	case errors.Is(err, once.ErrTooLate):
		return exit.With(exit.Held, err, "the times of the schedule have to be multiples of --tick, in UTC")
	case !errors.Is(err, locker.ErrHeld):
		return err
	}
	next := "try again later, or wait for it with --wait"
	if h.opts.MaxWait > 0 {
		next = "try again later, or wait longer with --wait"
	}
	return exit.With(exit.Held, err, next)
}

func (h *holder) lock(ctx context.Context, l locker.Locker) (locker.Lease, error) {
	if !h.opts.Tick.IsZero() {
		// A claim lasts for the skew at least, also if it comes at the end of the window.
		limited := locker.Defaults(locker.MaxHold(h.opts.MaxHold))(l)
		return once.Claim(ctx, limited, h.opts.Key, h.opts.Tick, once.Skew(h.opts.Validity),
			once.Unavailable(func(err error) {
				h.opts.Note("the tick cannot be claimed yet, trying again for up to a minute after it: %s", exit.Text(err))
			}))
	}
	if err := h.checkMinHold(ctx, l); err != nil {
		return nil, err
	}
	opts := []locker.Option{locker.TTL(h.opts.Validity), locker.MinHold(h.opts.MinHold), locker.MaxHold(h.opts.MaxHold)}
	if h.opts.Take != nil {
		return h.opts.Take(ctx, l, opts...)
	}
	one, all := l.Lock, locker.LockAll
	switch wait := h.opts.MaxWait; {
	case wait == 0:
		one, all = l.TryLock, locker.TryLockAll
	case wait > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	if len(h.opts.Keys) > 1 {
		one = func(ctx context.Context, _ string, opts ...locker.Option) (locker.Lease, error) {
			return lockAll(ctx, l, all, h.opts.Keys, opts)
		}
	}
	lease, err := one(ctx, h.opts.Key, opts...)
	var held *locker.HeldError
	if h.opts.MaxWait != 0 || !errors.As(err, &held) || held.Seen == 0 {
		return lease, err
	}
	// A command that looks once would never get the lock of a holder that has crashed: a cron job would not run again.
	h.opts.Note("%q: %v: watching whether its holder is alive", h.opts.Key, held)
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, held.Remaining+time.Second)
	defer cancel()
	if len(h.opts.Keys) > 1 {
		lease, err = lockAll(ctx, l, locker.LockAll, h.opts.Keys, opts)
	} else {
		lease, err = l.Lock(ctx, h.opts.Key, opts...)
	}
	if err == nil && time.Since(began) < held.Remaining {
		// Somebody has released the lock, and so was alive when this command looked. Another store would have refused it
		// then: a job that several machines start would run on each of them, one after the other.
		_ = lease.Unlock(ctx)
		return nil, held
	}
	return lease, err
}

// checkMinHold refuses a MinHold that would keep this command from ever running again: of a store that does not count
// time, a process that waits for less than that never gets a lock that was kept.
func (h *holder) checkMinHold(ctx context.Context, l locker.Locker) error {
	i, ok := locker.As[inspect.Inspector](l)
	if h.opts.MinHold == 0 || h.opts.MaxWait < 0 || h.opts.MaxWait > h.opts.MinHold || !ok {
		return nil
	}
	// If the store is down, the attempt to lock says so.
	if seen, err := i.Inspect(ctx, h.opts.Keys[0]); err == nil && seen.Seen > 0 {
		return exit.Usagef("--min-hold %v: in this store, only a command that waits for longer gets a lock that was kept: "+
			"use --tick for a job of cron, or a longer --wait", h.opts.MinHold)
	}
	return nil
}

// lockAll calls all, and returns no *AllLease that is nil.
func lockAll(
	ctx context.Context, l locker.Locker,
	all func(context.Context, locker.Locker, []string, ...locker.Option) (*locker.AllLease, error),
	keys []string, opts []locker.Option,
) (locker.Lease, error) {
	lease, err := all(ctx, l, keys, opts...)
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// fences are the tokens of the locks, one in each line.
func (h *holder) fences() string {
	all, several := h.lease.(*locker.AllLease)
	if !several {
		return strconv.FormatUint(h.lease.Fence(), 10)
	}
	var tokens []string
	for _, key := range all.Keys() {
		tokens = append(tokens, strconv.FormatUint(all.FenceOf(key), 10))
	}
	return strings.Join(tokens, "\n")
}

// trace informs the holder of what happens to the lock. The hooks run on goroutines of the Client.
func (h *holder) trace(ctx context.Context) context.Context {
	return lockertrace.With(ctx, &lockertrace.Trace{
		Waiting: func(w lockertrace.Waiting) {
			if !h.opts.Tick.IsZero() { // for a moment only
				return
			}
			h.opts.Note("waiting for %q: %v", h.opts.Key, &locker.HeldError{Remaining: w.Remaining, Label: w.Label})
		},
		Renewed: h.renewal,
		InDoubt: func(err error) { h.opts.Note("%q could not be renewed, trying again: %s", h.opts.Key, exit.Text(err)) },
	})
}

// renewal records a renewal, and wakes watch.
func (h *holder) renewal(r lockertrace.Renewal) {
	h.last.Store(&r)
	select {
	case h.renewed <- struct{}{}:
	default:
	}
}

// endedBy returns the exit code for a signal that arrives before the command is started.
func endedBy(sig os.Signal) error {
	n := int(sig.(syscall.Signal))
	return &exit.Error{Code: exit.Signal + n}
}

// pendingEnd returns the error for a signal that has already arrived, if it is one that ends the program.
func (h *holder) pendingEnd() error {
	for {
		select {
		case sig := <-h.signals:
			if slices.Contains(ending, sig) {
				return endedBy(sig)
			}
		default:
			return nil
		}
	}
}

func (h *holder) lostBefore(err error) error {
	return exit.With(exit.Lost, fmt.Errorf("the command was not started: %w", err), "try again, with a longer --ttl")
}

// killBy is the time by which the command must have ended, unless the lock is renewed.
func (h *holder) killBy() time.Time { return h.lease.Until().Add(-h.opts.Margin()) }

// lose records why the command is being stopped.
func (h *holder) lose(err error) {
	if h.lost != nil {
		return
	}
	if err == nil {
		err = h.why()
	}
	h.lost = err
	done := "the command is being stopped"
	if h.opts.OnLost == Notify {
		done = "the command was notified"
	}
	h.opts.Note("%q: %v: %s", h.opts.Key, err, done)
}

// why returns the reason for stopping the command before the end of the lease.
func (h *holder) why() error {
	switch last := h.last.Load(); {
	case last != nil && last.Err != nil:
		return fmt.Errorf("it could not be renewed in time: %w", last.Err)
	case h.opts.MaxHold > 0:
		return fmt.Errorf("--max-hold %v is over", h.opts.MaxHold)
	}
	return errors.New("locker was stopped, or was too slow to renew it")
}

// ending are the signals that end a wait for the lock.
var ending = []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT}

// heeded returns the signals that are caught: those that a terminal, an operator or a service manager may send. Signals
// that were ignored when this program was started, for example by nohup, stay ignored, for the command as well.
func heeded() []os.Signal {
	all := append(slices.Clone(ending), unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP)
	return append(slices.DeleteFunc(all, signal.Ignored), unix.SIGCONT) // SIGCONT takes effect even if it is ignored
}

// pass passes a signal to the command.
func (h *holder) pass(sig syscall.Signal) {
	o := order{Do: doSignal, Signal: int(sig)}
	switch sig {
	case unix.SIGTERM:
		o = order{Do: doStop}
	case unix.SIGPIPE:
		return
	case unix.SIGTSTP:
		h.suspended = true
	case unix.SIGCONT: // of the shell's fg
		if h.group != 0 {
			h.terminal.give(h.group)
		}
	}
	_ = send(h.orders, o)
}

// stopped handles a command that was stopped, for example with Ctrl-Z. locker stops as well, so that the shell sees a
// stopped job. The lock is not renewed during this time, and the guard kills the command before another owner can get
// the lock.
func (h *holder) stopped(sig syscall.Signal) {
	switch wants := sig == unix.SIGTTIN || sig == unix.SIGTTOU; {
	case wants && h.terminal.with(h.group): // the command read before it had the terminal, and has it now
	case !h.suspended && !h.terminal.there: // somebody stopped the command alone
		return
	default:
		h.suspended = false
		h.terminal.take()
		h.pause()
		h.terminal.give(h.group)
	}
	_ = send(h.orders, order{Do: doSignal, Signal: int(unix.SIGCONT)})
}

// pause stops this process and returns after SIGCONT. The threads of a process do not stop at the same time. A thread
// that continued too early would continue the command, which would read from the terminal and be stopped again.
func (h *holder) pause() {
	early := []os.Signal{}
	for len(h.signals) > 0 {
		if sig := <-h.signals; sig != unix.SIGCONT { // an earlier SIGCONT does not count
			early = append(early, sig)
		}
	}
	stop()
	for sig := range h.signals {
		if sig == unix.SIGCONT {
			break
		}
		early = append(early, sig)
	}
	for _, sig := range early {
		h.pass(sig.(syscall.Signal))
	}
}
