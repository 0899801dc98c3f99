//go:build linux

// Command relay stands for a network between clients and servers of this machine. It passes on each message, in both
// directions, a given time after the message has come, in order and without a limit on how many are on their way.
//
//	relay DELAY ADDR...
//
// It prints an address of its own for each of the servers' addresses, and passes connections on until its stdin is
// closed. Then it prints its Figures as JSON.
//
// It is one thread that waits for messages and for the time of the next delivery together, because a timer of Go is
// late by up to a millisecond when the process has nothing else to do. The thread runs before all others if it may: a
// network does not wait for a processor.
package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Figures are what the relay did. A message is what one read has returned.
type Figures struct {
	Messages int
	// CPU is the processor time for each message, Late how late messages were delivered: median and 99th percentile.
	CPU, Late, LateP99 time.Duration
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

// end is one end of a connection. What is read from it is written to the other.
type end struct {
	fd     int
	other  *end
	closed bool
}

// message is on its way to an end. Without bytes it closes the connection.
type message struct {
	due   time.Duration // since begin
	to    *end
	bytes []byte
}

type relay struct {
	poll      int
	delay     time.Duration
	begin     time.Time
	listeners map[int]unix.Sockaddr // servers, by the listener of the relay
	ends      map[int]*end
	queue     []message // by due, which is the order of arrival because all wait equally long
	free      [][]byte
	messages  int
	late      [10_000]int // messages, by how many µs they were late
}

const largest = 16 << 10 // bytes of a message

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: relay DELAY ADDR")
	}
	delay, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // messages use the same memory again
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	r := &relay{delay: delay, begin: time.Now(), listeners: map[int]unix.Sockaddr{}, ends: map[int]*end{}}
	if r.poll, err = unix.EpollCreate1(0); err != nil {
		return err
	}
	for _, addr := range args[1:] {
		own, err := r.listen(addr)
		if err != nil {
			return fmt.Errorf("%s: %w", addr, err)
		}
		fmt.Println(own)
	}
	if err := r.watch(unix.Stdin); err != nil {
		return err
	}
	if err := r.pass(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r.figures())
}

func (r *relay) watch(fd int) error {
	return unix.EpollCtl(r.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// listen returns the address at which connections to server are accepted.
func (r *relay) listen(server string) (netip.AddrPort, error) {
	to, err := netip.ParseAddrPort(server)
	if err != nil {
		return to, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return to, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return to, err
	}
	if err := unix.Listen(fd, 1024); err != nil {
		return to, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return to, err
	}
	r.listeners[fd] = &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	own := name.(*unix.SockaddrInet4)
	return netip.AddrPortFrom(netip.AddrFrom4(own.Addr), uint16(own.Port)), r.watch(fd)
}

// pass works until stdin is closed.
func (r *relay) pass() error {
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := r.wait(events)
		if err != nil {
			return err
		}
		r.deliver()
		now := time.Since(r.begin)
		for _, e := range events[:n] {
			fd := int(e.Fd)
			if fd == unix.Stdin {
				return nil
			}
			if server, ok := r.listeners[fd]; ok {
				r.accept(fd, server)
			} else if from := r.ends[fd]; from != nil {
				r.read(from, now+r.delay)
			}
		}
	}
}

// wait returns when there is something to read or to deliver.
func (r *relay) wait(events []unix.EpollEvent) (int, error) {
	var timeout *unix.Timespec
	if len(r.queue) > 0 {
		t := unix.NsecToTimespec(int64(max(0, r.queue[0].due-time.Since(r.begin))))
		timeout = &t
	}
	// The thread keeps its right to run Go while it sleeps, because Go's scheduler would wake up to take it away.
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(r.poll),
		uintptr(unsafe.Pointer(&events[0])), //nolint:gosec // the kernel writes events
		uintptr(len(events)),
		uintptr(unsafe.Pointer(timeout)), //nolint:gosec // the kernel reads the timeout
		0, 0)
	if e == unix.EINTR {
		return 0, nil
	}
	if e != 0 {
		return 0, os.NewSyscallError("epoll_pwait2", e)
	}
	return int(n), nil
}

// deliver writes what is due. A receiver that leaves so much unread that the kernel takes no more is cut off.
func (r *relay) deliver() {
	for len(r.queue) > 0 {
		m := r.queue[0]
		late := time.Since(r.begin) - m.due
		if late < 0 {
			return
		}
		r.queue = r.queue[1:]
		if m.bytes == nil {
			r.close(m.to)
			continue
		}
		r.messages++
		r.late[min(int(late/time.Microsecond), len(r.late)-1)]++
		if !m.to.closed {
			if n, err := unix.Write(m.to.fd, m.bytes); err != nil || n < len(m.bytes) {
				r.close(m.to)
			}
		}
		r.free = append(r.free, m.bytes[:largest])
	}
}

func (r *relay) read(from *end, due time.Duration) {
	var b []byte
	if n := len(r.free); n > 0 {
		b, r.free = r.free[n-1], r.free[:n-1]
	} else {
		b = make([]byte, largest)
	}
	n, err := unix.Read(from.fd, b)
	if err == unix.EAGAIN || err == unix.EINTR {
		r.free = append(r.free, b)
		return
	}
	if err != nil || n == 0 {
		r.free, b = append(r.free, b), nil
		delete(r.ends, from.fd)
		_ = unix.EpollCtl(r.poll, unix.EPOLL_CTL_DEL, from.fd, nil)
		n = 0
	}
	r.queue = append(r.queue, message{due, from.other, b[:n]})
}

// accept connects a client with the server. A client whose server is down is accepted and loses its connection.
func (r *relay) accept(listener int, server unix.Sockaddr) {
	client, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if err != nil {
		return
	}
	up, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(up, server)
	}
	if err == nil {
		err = unix.SetNonblock(up, true)
	}
	a, b := &end{fd: client}, &end{fd: up}
	a.other, b.other = b, a
	for _, e := range []*end{a, b} {
		if err == nil {
			r.ends[e.fd] = e
			_ = unix.SetsockoptInt(e.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
			err = r.watch(e.fd)
		}
	}
	if err != nil {
		r.close(a)
	}
}

// close closes both ends.
func (r *relay) close(e *end) {
	for _, e := range []*end{e, e.other} {
		if !e.closed {
			e.closed = true
			delete(r.ends, e.fd)
			_ = unix.Close(e.fd)
		}
	}
}

func (r *relay) figures() Figures {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	n := max(1, r.messages)
	quantile := func(percent int) time.Duration {
		seen := 0
		for late, count := range r.late {
			if seen += count; 100*seen >= percent*n {
				return time.Duration(late) * time.Microsecond
			}
		}
		return 0
	}
	return Figures{r.messages, time.Duration(u.Utime.Nano()+u.Stime.Nano()) / time.Duration(n), quantile(50), quantile(99)}
}
