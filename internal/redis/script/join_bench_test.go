package script_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
)

// BenchmarkJoined is the server's CPU time for a lock and its release, joined with as many others as the name says, and
// for two bare commands: SET NX PX and a script that compares and deletes. 64 locks are in one pipeline. Nodes of a
// Redlock round their clocks down.
func BenchmarkJoined(b *testing.B) {
	const depth = 64
	const bare = `if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0`
	s := redistest.Start(b)
	conn, err := redis.Dial("unix", s.Socket())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	digest := s.Cmd(b, "SCRIPT", "LOAD", bare).(string)
	s.Cmd(b, "SCRIPT", "LOAD", script.Join(nil).Source)
	trip := func(cmds []drivers.Command) (replies []any) {
		for _, cmd := range cmds {
			words := make([]any, len(cmd)-1)
			for i := range words {
				words[i] = cmd[1+i]
			}
			_ = conn.Send(cmd[0], words...)
		}
		_ = conn.Flush()
		for range cmds {
			r, err := conn.Receive()
			if err != nil {
				b.Fatal(err)
			}
			replies = append(replies, r)
		}
		return replies
	}
	owner := func(i int) string { return fmt.Sprintf("0123456789abcdef0123456789%06d", i) }
	attempts := make([]script.Attempt, 512)
	for i := range attempts {
		attempts[i] = script.Attempt{Keys: script.KeysOf("lock:", fmt.Sprint("orders:", i)), Token: owner(i), Node: 1}
	}
	run := func(name string, cycles func(from int)) {
		b.Run(name, func(b *testing.B) {
			s.Cmd(b, "FLUSHALL")
			before, n := s.CPU(b), 0
			for b.Loop() {
				cycles(n * depth % len(attempts))
				n++
			}
			b.ReportMetric(micros(s.CPU(b)-before)/float64(n*depth), "server-µs/cycle")
		})
	}
	run("bare", func(from int) {
		var cmds []drivers.Command
		for _, a := range attempts[from : from+depth] {
			cmds = append(cmds, drivers.Command{"SET", a.Lock, a.Token, "NX", "PX", "10000"},
				drivers.Command{"EVALSHA", digest, "1", a.Lock, a.Token})
		}
		trip(cmds)
	})
	joined := func(name string, n int, quantum int64) {
		run(fmt.Sprint(name, "/", n), func(from int) {
			var locks, releases []drivers.Command
			for i := from; i < from+depth; i += n {
				var usual []*script.Usual
				for j, a := range attempts[i : i+n] {
					usual = append(usual, &script.Usual{
						Lock: a.Lock, Wait: "{" + a.Lock + "}:lockwait", Fence: "{" + strconv.Itoa(i+j) + "}}lock:fence",
						Text: "|" + a.Token + "|1|web-7:4211", TTL: 10 * time.Second, Quantum: quantum,
					})
				}
				locks = append(locks, script.Join(usual).Words)
			}
			for batch, counters := range trip(locks) {
				var usual []*script.Usual
				numbers, err := script.ReadJoined(counters, n)
				if err != nil {
					b.Fatal(err)
				}
				for j, c := range numbers {
					a := attempts[from+batch*n+j]
					usual = append(usual, &script.Usual{
						Lock: a.Lock, Text: fmt.Sprintf("%016d|%s|1|web-7:4211", c, a.Token),
					})
				}
				releases = append(releases, script.Join(usual).Words)
			}
			for _, deleted := range trip(releases) {
				if numbers, err := script.ReadJoined(deleted, n); err != nil || slices.Contains(numbers, 0) {
					b.Fatal("a release found something unusual", numbers, err)
				}
			}
		})
	}
	for _, n := range []int{1, 8, 32, 64} {
		joined("single", n, 1)
		joined("node", n, 65536)
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// BenchmarkGuard is the server's CPU time for what each script with a restart guard asks it once: INFO, and the marker.
func BenchmarkGuard(b *testing.B) {
	const calls = 1000
	s := redistest.Start(b)
	for name, call := range map[string]string{"INFO": "'INFO', 'replication'", "GET": "'GET', 'marker'"} {
		b.Run(name, func(b *testing.B) {
			text := fmt.Sprintf("for i = 1, %d do redis.call(%s) end", calls, call)
			before, n := s.CPU(b), 0
			for b.Loop() {
				s.Cmd(b, "EVAL", text, 0)
				n++
			}
			b.ReportMetric(micros(s.CPU(b)-before)/float64(n*calls), "server-µs/call")
		})
	}
}
