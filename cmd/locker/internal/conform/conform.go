// Package conform runs the conformance suites for Lockers, for semaphores, and for readers and writers outside of
// tests, against a deployment that is in use.
package conform

import (
	"bufio"
	"context"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
)

// Deployment is the deployment under test.
type Deployment struct {
	// Open makes a Locker for the given store. It must be as independent of the other Lockers as one in another
	// process. Stores are numbered from 0 and share no locks.
	Open func(n int) (locker.Locker, error)
	// Delete removes the lock under key from a store on Redis servers, without the knowledge of its holder. It is nil if
	// the store is another one.
	Delete func(n int, key string) error
}

// Outcome is the result of checking a property.
type Outcome string

// The outcomes of a property.
const (
	Passed  Outcome = "pass"
	Failed  Outcome = "fail"
	Skipped Outcome = "skip"
)

// Result is the outcome of one property with its details.
type Result struct {
	Property string        `json:"property"`
	Outcome  Outcome       `json:"outcome"`
	Took     time.Duration `json:"-"`
	Log      []string      `json:"log,omitempty"` // why the property failed or was skipped
}

// Main runs all properties, prints the results like go test -v, for [Read], and ends the process. It returns only if
// the suites could not begin.
//
// testing.Main uses the whole process: the command line, stdout and the exit code. The alternatives were rejected. A
// second implementation of testing.TB would have to follow the first one, and its faults would look like faults of the
// store. The argument of testing.MainStart changes from version to version.
func Main(ctx context.Context, d Deployment) error {
	h, remove, err := d.learn(ctx)
	if err != nil {
		return err
	}
	n := make(chan int, 1)
	n <- 0
	h.Store = func(t testing.TB) conformance.Store {
		store := <-n + 1
		n <- store
		return d.store(t, store, remove)
	}
	// The suites run one after the other. A writer makes requests for 64 locks, and other properties beside it would
	// be late.
	var tests []testing.InternalTest
	for _, run := range []func(*testing.T, conformance.Harness){
		conformance.RunLocker, conformance.RunSemaphore, conformance.RunRWLock,
	} {
		tests = append(tests, testing.InternalTest{Name: suite, F: func(t *testing.T) { run(t, h) }})
	}
	os.Args = []string{os.Args[0], "-test.v", "-test.parallel=4", "-test.timeout=20m"}
	testing.Main(func(string, string) (bool, error) { return true, nil }, tests, nil, nil)
	return nil
}

// store returns a Store without Left, because listing the keys means scanning all keys of servers that are in use.
func (d Deployment) store(t testing.TB, n int, remove func(n int, key string) error) conformance.Store {
	s := conformance.Store{
		Client: func() locker.Locker {
			l, err := d.Open(n)
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
	}
	if remove != nil {
		s.Delete = func(key string) {
			if err := remove(n, key); err != nil {
				t.Errorf("delete: %v", err)
			}
		}
	}
	return s
}

// suite is the name of the tests that [Main] runs. Names of properties differ from suite to suite.
const suite = "Conformance"

var verdict = regexp.MustCompile(`^    --- (PASS|FAIL|SKIP): ` + suite + `/(\S+) \(([0-9.]+s)\)$`)

var outcomes = map[string]Outcome{"PASS": Passed, "FAIL": Failed, "SKIP": Skipped}

// Read parses the output of [Main]. started is called for each property that starts or continues.
func Read(stdout io.Reader, started func(property string)) (results []Result) {
	in := bufio.NewScanner(stdout)
	in.Buffer(nil, 1<<20)
	logs := map[string][]string{}
	current := "" // the property of the log lines that follow
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
