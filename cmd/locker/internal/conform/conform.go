// Package conform runs the conformance suite for lockers outside of tests, against a deployment that is in use.
package conform

import (
	"bufio"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
)

// Deployment is what to run the suite against.
type Deployment struct {
	// Open makes a Locker of the store n, as independent of the others as another process would be. Stores are numbered
	// from 1, and share no locks.
	Open func(n int) (locker.Locker, error)
	// Delete removes the lock under key from store n, behind the back of its holder.
	Delete func(n int, key string) error
	// FIFO says that waiters are served in the order of their arrival.
	FIFO bool
}

// Outcome is how a property fared.
type Outcome string

// What can become of a property.
const (
	Passed  Outcome = "pass"
	Failed  Outcome = "fail"
	Skipped Outcome = "skip"
)

// Result is what became of one property.
type Result struct {
	Property string        `json:"property"`
	Outcome  Outcome       `json:"outcome"`
	Took     time.Duration `json:"-"`
	Log      []string      `json:"log,omitempty"` // why it failed, or was skipped
}

// Main runs all properties, prints what becomes of them as go test -v does, for [Read], and ends the process.
//
// testing.Main is exported for code that go test used to generate, and it takes the whole process: the command line, stdout
// and the exit. That was preferred to a second implementation of testing.TB, which would have to keep up with the first, and
// whose faults would be taken for the store's; and to testing.MainStart, whose argument changes from version to version.
func Main(d Deployment) {
	os.Args = []string{os.Args[0], "-test.v", "-test.parallel=4", "-test.timeout=10m"}
	n := make(chan int, 1)
	n <- 0
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: suite, F: func(t *testing.T) {
		conformance.RunLocker(t, conformance.Harness{FIFO: d.FIFO, Store: func(t testing.TB) conformance.Store {
			store := <-n + 1
			n <- store
			return d.store(t, store)
		}})
	}}}, nil, nil)
}

// store has no Left: to list what is left is to scan all keys of servers that are in use, again and again.
func (d Deployment) store(t testing.TB, n int) conformance.Store {
	return conformance.Store{
		Client: func() locker.Locker {
			l, err := d.Open(n)
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
		Delete: func(key string) {
			if err := d.Delete(n, key); err != nil {
				t.Errorf("delete: %v", err)
			}
		},
	}
}

const suite = "Conformance"

var verdict = regexp.MustCompile(`^    --- (PASS|FAIL|SKIP): ` + suite + `/(\S+) \(([0-9.]+s)\)$`)

var outcomes = map[string]Outcome{"PASS": Passed, "FAIL": Failed, "SKIP": Skipped}

// Read makes results of what [Main] prints. started is told of each property that begins, or goes on.
func Read(stdout io.Reader, started func(property string)) (results []Result) {
	in := bufio.NewScanner(stdout)
	in.Buffer(nil, 1<<20)
	logs := map[string][]string{}
	current := "" // whose log follows
	for in.Scan() {
		line := in.Text()
		mark, name, _ := strings.Cut(strings.TrimPrefix(line, "=== "), suite+"/")
		switch m := verdict.FindStringSubmatch(line); {
		case m != nil:
			took, _ := time.ParseDuration(m[3])
			results = append(results, Result{Property: m[2], Outcome: outcomes[m[1]], Took: took})
		case strings.HasPrefix(line, "---"), line == "FAIL", line == "PASS":
			current = ""
		case !strings.HasPrefix(line, "==="):
			if current != "" {
				logs[current] = append(logs[current], strings.TrimSpace(line))
			}
		case strings.HasPrefix(mark, "CONT"), strings.HasPrefix(mark, "NAME"), strings.HasPrefix(mark, "PAUSE"):
			if current = name; strings.HasPrefix(mark, "CONT") {
				started(name)
			}
		}
	}
	for i, r := range results {
		if r.Outcome != Passed {
			results[i].Log = logs[r.Property]
		}
	}
	return results
}
