package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
)

// keeper replaces a test for package redistest, which starts servers and ends them with this process, however it
// ends.
type keeper struct {
	testing.TB // nil, because only the methods below are called
	cleanups   []func()
}

type fatal string

func (k *keeper) Helper()                        {}
func (k *keeper) Failed() bool                   { return false } // the server is not to blame
func (k *keeper) Cleanup(f func())               { k.cleanups = append(k.cleanups, f) }
func (k *keeper) Fatalf(format string, a ...any) { panic(fatal(fmt.Sprintf(format, a...))) }

func (k *keeper) close() {
	for _, f := range k.cleanups {
		f()
	}
	k.cleanups = nil
}

// servers are redis-servers on free ports of the loopback interface.
type servers struct {
	keeper *keeper
	one    *redistest.Server   // for all scenarios but Redlock
	five   []*redistest.Server // for Redlock
	// network is between clients and servers; nil: they meet on loopback.
	network *network
}

// via opens sessions whose connections go through the network.
func (s *servers) via(open opener) opener {
	if s.network == nil {
		return open
	}
	return func(addrs []string, l limits) (session, error) {
		routed := make([]string, len(addrs))
		for i, addr := range addrs {
			routed[i] = s.network.route[addr]
		}
		return open(routed, l)
	}
}

func startServers() (s *servers, err error) {
	s = &servers{keeper: &keeper{}}
	defer func() {
		if f, ok := recover().(fatal); ok {
			s.keeper.close()
			err = fmt.Errorf("%s", string(f))
		}
	}()
	start := func() *redistest.Server { return redistest.Start(s.keeper, "--maxclients", "5000") }
	s.one = start()
	for range 5 {
		s.five = append(s.five, start())
	}
	return s, nil
}

func (s *servers) close() { s.keeper.close() }

func addrs(group []*redistest.Server) []string {
	var list []string
	for _, s := range group {
		list = append(list, s.Addr())
	}
	return list
}

// flush empties the servers; scripts stay loaded.
func flush(group []*redistest.Server) error {
	for _, s := range group {
		if _, err := s.Do("FLUSHALL"); err != nil {
			return fmt.Errorf("%s: %w", s.Addr(), err)
		}
	}
	return nil
}

// info is a section of INFO.
func info(s *redistest.Server, section string) map[string]string {
	text, _ := s.Do("INFO", section)
	fields := map[string]string{}
	body, _ := text.(string)
	for line := range strings.Lines(body) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// resetStatistics begins the counts and percentiles of the servers anew.
func resetStatistics(group []*redistest.Server) {
	for _, s := range group {
		_, _ = s.Do("CONFIG", "RESETSTAT")
	}
}

// knowsNativeRelease reports whether the server can compare and delete by one command: DELEX or DELIFEQ.
func knowsNativeRelease(s *redistest.Server) bool {
	for _, name := range []string{"DELEX", "DELIFEQ"} {
		reply, _ := s.Do("COMMAND", "INFO", name)
		if list, ok := reply.([]any); ok && len(list) == 1 && list[0] != nil {
			return true
		}
	}
	return false
}

// work is what servers have done so far.
type work struct {
	cpu      time.Duration // user and system
	reads    float64       // round trips: requests of one or more commands that arrived together
	commands float64       // calls, including those of scripts
	calls    map[string]float64
	// scriptP999 is how long a script kept a server, in µs: the 99.9th percentile since resetStatistics, of the server
	// with the largest. It is 0 if there were no scripts, and before Redis 7.
	scriptP999 float64
}

func workOf(group []*redistest.Server) work {
	w := work{calls: map[string]float64{}}
	number := func(s string) float64 {
		f, _ := strconv.ParseFloat(s, 64)
		return f
	}
	for _, s := range group {
		for name, value := range info(s, "everything") {
			switch {
			case name == "used_cpu_sys" || name == "used_cpu_user":
				w.cpu += time.Duration(number(value) * float64(time.Second))
			case name == "total_reads_processed":
				w.reads += number(value)
			case name == "latency_percentiles_usec_evalsha":
				_, p999, _ := strings.Cut(value, "p99.9=")
				w.scriptP999 = max(w.scriptP999, number(p999))
			case strings.HasPrefix(name, "cmdstat_"):
				calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
				name = strings.TrimPrefix(name, "cmdstat_")
				w.calls[name] += number(calls)
				if name != "info" {
					w.commands += number(calls)
				}
			}
		}
	}
	return w
}

func (w work) since(old work) work {
	d := work{
		cpu: w.cpu - old.cpu, reads: w.reads - old.reads, commands: w.commands - old.commands,
		calls: map[string]float64{}, scriptP999: w.scriptP999,
	}
	for name, n := range w.calls {
		d.calls[name] = n - old.calls[name]
	}
	return d
}
