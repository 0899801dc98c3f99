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

// version of the redis-server.
func version(s *redistest.Server) string { return info(s, "server")["redis_version"] }

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

// work is what servers have done so far.
type work struct {
	cpu      time.Duration // user and system
	reads    float64       // round trips: requests of one or more commands that arrived together
	commands float64       // calls, including those of scripts
	calls    map[string]float64
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
	d := work{cpu: w.cpu - old.cpu, reads: w.reads - old.reads, commands: w.commands - old.commands, calls: map[string]float64{}}
	for name, n := range w.calls {
		d.calls[name] = n - old.calls[name]
	}
	return d
}
