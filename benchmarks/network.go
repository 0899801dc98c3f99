package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// network is a relay between clients and servers: see relay/main.go. It is a process of its own, so that its work is
// not the clients'. nil stands for loopback.
type network struct {
	round          time.Duration     // the round trip that was asked for
	delay          time.Duration     // of each direction
	ping, loopback time.Duration     // a PING through the relay and on loopback, medians
	route          map[string]string // addresses of the relay, by those of the servers
	relay          *exec.Cmd
	stdin          io.Closer
	stdout         *bufio.Reader
}

// newNetwork starts a relay through which a PING takes the round trip, or returns nil if that is 0. The work of client,
// relay and server is part of the round trip, so each direction waits for less than half of it.
func newNetwork(s *servers, round time.Duration) (n *network, err error) {
	if round == 0 {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "locker-relay")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	_, file, _, _ := runtime.Caller(0)
	program := filepath.Join(dir, "relay")
	build := exec.Command("go", "build", "-C", filepath.Dir(file), "-o", program, "./relay")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the relay: %w\n%s", err, out)
	}
	n = &network{round: round, delay: round / 2}
	if n.loopback, err = ping(s.one.Addr()); err != nil {
		return nil, err
	}
	for tries := 3; ; tries-- {
		if err := n.start(program, append(addrs(s.five), s.one.Addr())); err != nil {
			return nil, err
		}
		n.ping, err = ping(n.route[s.one.Addr()])
		if tries == 1 && err == nil {
			return n, nil
		}
		if _, ended := n.end(); cmp.Or(err, ended) != nil {
			return nil, cmp.Or(err, ended)
		}
		n.delay = max(0, n.delay-(n.ping-round)/2)
	}
}

func (n *network) start(relay string, servers []string) error {
	n.relay = exec.Command(relay, append([]string{n.delay.String()}, servers...)...)
	n.relay.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1") // else a signal wakes it every 10 ms
	n.relay.Stderr = os.Stderr
	stdin, err := n.relay.StdinPipe() // it is closed when this process ends, however that is
	if err != nil {
		return err
	}
	stdout, err := n.relay.StdoutPipe()
	if err != nil {
		return err
	}
	n.stdin, n.stdout, n.route = stdin, bufio.NewReader(stdout), map[string]string{}
	if err := n.relay.Start(); err != nil {
		return err
	}
	for _, server := range servers {
		addr, err := n.stdout.ReadString('\n')
		if err != nil {
			_, _ = n.end()
			return fmt.Errorf("the relay has no address for %s: %w", server, err)
		}
		n.route[server] = strings.TrimSpace(addr)
	}
	return nil
}

// end ends the relay, and says what the network was like.
func (n *network) end() (string, error) {
	if n == nil {
		return "", nil
	}
	_ = n.stdin.Close()
	var f struct {
		Messages           int
		CPU, Late, LateP99 time.Duration
	}
	err := json.NewDecoder(n.stdout).Decode(&f)
	if err := n.relay.Wait(); err != nil {
		return "", err
	}
	return fmt.Sprintf("Round trip %s ms: a PING takes %v through the relay and %v on loopback; each direction waits for "+
		"%v. The relay passed %d messages, each by %v of processor time, and late by %v at the median, %v at the 99th "+
		"percentile.", milliseconds(n.round), n.ping, n.loopback, n.delay, f.Messages, f.CPU, f.Late, f.LateP99), err
}

// ping is the median time of a PING.
func ping(addr string) (time.Duration, error) {
	pool := newRedigo(addr, limits{1, longTimeout})
	defer pool.Close()
	conn := pool.Get()
	defer conn.Close()
	took := newSamples(300)
	for range cap(took) {
		start := time.Now()
		if _, err := conn.Do("PING"); err != nil {
			return 0, err
		}
		took.add(time.Since(start))
	}
	return time.Duration(took.quantile(.5) * float64(time.Microsecond)).Round(time.Microsecond), nil
}

// milliseconds writes a round trip as 0.5.
func milliseconds(round time.Duration) string {
	return fmt.Sprintf("%g", float64(round)/float64(time.Millisecond))
}

// suffix is what names of results over a network end in.
func suffix(round time.Duration) string {
	if round == 0 {
		return ""
	}
	return "-" + milliseconds(round) + "ms"
}

// inWords is suffix for people.
func inWords(round time.Duration) string {
	if round == 0 {
		return ""
	}
	return ", round trip " + milliseconds(round) + " ms"
}
