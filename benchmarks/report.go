package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
)

// Report is what is written as JSON: everything, round by round.
type Report struct {
	Date     time.Time         `json:"date"`
	Took     string            `json:"took"`
	Command  string            `json:"command"`
	Commit   string            `json:"commit"` // "+dirty" if there are changes that are not committed
	Machine  Machine           `json:"machine"`
	Modules  map[string]string `json:"modules"`
	Plan     plan              `json:"plan"`
	Results  []*Result         `json:"results"`
	Budgets  []Budget          `json:"budgets"`
	Settings []string          `json:"settings"`
	Networks []string          `json:"networks,omitempty"` // see network.end
}

// Machine is where it ran.
type Machine struct {
	Go      string `json:"go"`
	OS      string `json:"os"`
	CPU     string `json:"cpu"`
	Cores   int    `json:"cores"`
	Server  string `json:"server"`       // its name and version
	LoadAvg string `json:"load_average"` // before the measurement, which shows other work
	Awake   bool   `json:"kept_awake"`   // see keepAwake
	// NativeRelease: the server can compare and delete by one command.
	NativeRelease bool `json:"native_release"`
}

// settings say how the contestants were set up.
var settings = []string{
	"One machine: redis-servers (no persistence) and clients share its processors; loopback, or a relay as -rtt says.",
	"Contestants over one client library get clients from one function (clients.go): connections for every goroutine, " +
		"no retries, no client cache, RESP2 and no handshake extras for go-redis, rueidis with its default multiplexing.",
	"raw: the client's own SET NX PX and EVALSHA of a compare-and-delete. No random owner, no fencing token, no renewal.",
	"locker: New(client), defaults: 10 s TTL, renewal on.",
	"redsync: NewMutex for each acquisition, 10 s expiry, defaults otherwise unless the name says which waits between " +
		"tries.",
	"redislock: 10 s TTL, one try, or linear back-off as the name says.",
	"rueidislock: one key (KeyMajority 1), client cache on, which it waits by; NoLoopTracking; TryNextAfter " +
		"10 s, because 20 ms fails under load.",
	"Redlock clients give up on a node after 500 ms. That alone ends a redsync unlock on a node that hangs; its lock " +
		"has a bound of its own, a twentieth of the expiry, which is 500 ms, too.",
}

func newReport(p plan, s *servers) *Report {
	command := strings.Join(append([]string{"go run ."}, os.Args[1:]...), " ")
	r := &Report{Date: time.Now().UTC().Truncate(time.Second), Command: command, Commit: commit(), Plan: p,
		Modules: map[string]string{}, Settings: settings}
	r.Machine = Machine{Go: runtime.Version(), OS: runtime.GOOS + "/" + runtime.GOARCH, CPU: cpuModel(),
		Cores: runtime.NumCPU(), Server: redistest.Version(redistest.Binary(s.keeper)),
		NativeRelease: knowsNativeRelease(s.one)}
	load, _ := os.ReadFile("/proc/loadavg")
	r.Machine.LoadAvg = strings.TrimSpace(string(load))
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, m := range b.Deps {
			for _, mine := range []string{"redis", "redigo", "redsync", "rueidis", "valkey"} {
				if strings.Contains(m.Path, mine) {
					r.Modules[m.Path] = m.Version
				}
			}
		}
	}
	return r
}

func commit() string {
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	id := strings.TrimSpace(string(out))
	changes, err := exec.Command("git", "--no-optional-locks", "status", "--porcelain", "--", ":/").Output()
	if err != nil || len(changes) > 0 {
		id += "+dirty"
	}
	return id
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func (r *Report) summary() string {
	awake := "kept awake"
	if !r.Machine.Awake {
		awake = "which may sleep"
	}
	m := r.Machine
	return fmt.Sprintf("%s, commit %s; %s, %d processors (%s), %s, %s, %s; %d rounds, medians; load average before: %s",
		r.Date.Format(time.DateTime), r.Commit, m.OS, m.Cores, m.CPU, awake, m.Go, m.Server, r.Plan.Rounds, m.LoadAvg)
}

func (r *Report) writeJSON(path string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}

// writeMarkdown is for README.md.
func (r *Report) writeMarkdown(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	fmt.Fprintf(f, "`%s`: %s.\n\n", r.Command, r.summary())
	for _, result := range r.Results {
		fmt.Fprintf(f, "### %s\n\n", result.Title)
		writeMarkdownTable(f, result.cells())
		fmt.Fprintf(f, "%s\n\n", result.Note)
	}
	for _, network := range r.Networks {
		fmt.Fprintf(f, "%s\n\n", network)
	}
	fmt.Fprint(f, "### Budgets\n\n")
	writeMarkdownTable(f, budgetCells(r.Budgets))
	return f.Close()
}

func (r *Report) writeBudgets(w io.Writer) {
	fmt.Fprintln(w, "\nBudgets")
	writeTable(w, budgetCells(slices.DeleteFunc(slices.Clone(r.Budgets), func(b Budget) bool { return !b.Known })))
	met, known := 0, 0
	for _, b := range r.Budgets {
		if b.Known {
			known++
		}
		if b.met() {
			met++
		}
	}
	fmt.Fprintf(w, "%d of %d met", met, known)
	if open := len(r.Budgets) - known; open > 0 {
		fmt.Fprintf(w, ", %d not measured", open)
	}
	fmt.Fprintln(w)
}
