//go:build unix

package cli

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/golocker/locker/internal/child"
)

// startLimit is how long a server may take to answer on a busy machine.
const startLimit = 15 * time.Second

// durable makes a server persist every write.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

// startRedis starts a redis-server on a free port, which ends with this process, and waits until it answers. Another
// program may take the port before the server binds it. The server then exits, and another port is tried.
func startRedis(ctx context.Context, binary string) (*devNode, error) {
	var err error
	for range 10 {
		var n *devNode
		if n, err = tryRedis(ctx, binary); err == nil || ctx.Err() != nil {
			return n, err
		}
	}
	return nil, err
}

func tryRedis(ctx context.Context, binary string) (*devNode, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(addr)
	dir, err := os.MkdirTemp("", "locker-dev")
	if err != nil {
		return nil, err
	}
	log := filepath.Join(dir, "log")
	p, err := child.Spawn(binary, dir, nil, append([]string{
		"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--logfile", log, "--daemonize", "no", "--save", "",
	}, durable...))
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	n := &devNode{addr: addr, pid: p.Pid(), gone: p.Gone(), stop: func() {
		p.Kill()
		_ = os.RemoveAll(dir)
	}}
	for end := time.Now().Add(startLimit); !isProcess(addr, p.Pid()); time.Sleep(5 * time.Millisecond) {
		if p.Exited() || time.Now().After(end) || ctx.Err() != nil {
			text, _ := os.ReadFile(log)
			n.stop()
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			return nil, fmt.Errorf("%w: %s", errNotUp, lines[len(lines)-1])
		}
	}
	// A user may kill the server as an experiment. Its files are not needed afterwards.
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		<-p.Gone()
		_ = os.RemoveAll(dir)
	}()
	n.stop = func() {
		p.Kill()
		<-removed
	}
	return n, nil
}

// isProcess reports whether the server at addr has this process id, and is not another program that has bound the port
// first.
func isProcess(addr string, pid int) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("INFO server\r\nQUIT\r\n")); err != nil {
		return false
	}
	for in := bufio.NewScanner(conn); in.Scan(); {
		if in.Text() == "process_id:"+strconv.Itoa(pid) {
			return true
		}
	}
	return false
}

// columns returns the width of the terminal that w is, or 0 if it is none.
func columns(w any) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}
