//go:build unix

// Package testserver is what the servers of tests have in common, whatever they speak: their programs, their processes,
// their networks, their clocks and their disks. Clocks and disks need a C compiler.
package testserver

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/golocker/locker/internal/child"
)

// StartTimeout is how long a server may take until it serves. It is generous, because tests under the race detector
// keep every core of a small machine busy, and a member of etcd that comes back reads what it has missed.
const StartTimeout = 2 * time.Minute

// Server is a process that tests freeze, kill and start again. The zero value is dead. Its methods may be called from
// several goroutines.
type Server struct {
	mu   sync.Mutex
	proc *child.Process // nil while the server is dead
}

// Launch starts the process of a dead server, as [child.Spawn] does.
func (s *Server) Launch(binary, dir string, env, args []string) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc, err = child.Spawn(binary, dir, env, args)
	return err
}

// ErrExited means that a server has ended before it served.
var ErrExited = errors.New("it exited")

// Await returns when the server, which has been launched, serves. If that takes longer than StartTimeout, Await kills
// it and fails.
func (s *Server) Await(serves func() bool) error {
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	for end := time.Now().Add(StartTimeout); !serves(); {
		if p.Exited() {
			return ErrExited
		}
		if time.Now().After(end) {
			s.Kill()
			return fmt.Errorf("it does not serve within %v", StartTimeout)
		}
		<-time.After(2 * time.Millisecond)
	}
	return nil
}

// Pid returns the process id. It is 0 while the server is dead.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.Pid()
}

// Pause freezes the server (SIGSTOP). The kernel still accepts connections and bytes for it, but the server answers
// nothing. It executes what was sent meanwhile after Resume.
func (s *Server) Pause() { s.living((*child.Process).Freeze) }

// Resume continues a paused server (SIGCONT).
func (s *Server) Resume() { s.living(func(p *child.Process) { p.Signal(syscall.SIGCONT) }) }

// Kill ends the server at once (SIGKILL), running or paused, and returns when the process has ended. Killing a dead
// server has no effect.
func (s *Server) Kill() {
	s.living(func(p *child.Process) {
		p.Kill()
		s.proc = nil
	})
}

// living calls do with the process, if there is one.
func (s *Server) living(do func(p *child.Process)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		do(s.proc)
	}
}
