package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// outcome is what one test binary did on one server.
type outcome struct {
	binary
	results map[string]string // pass, fail or skip, by the full name of the test
	broken  string            // why the binary failed, if that was not by a test
	flaky   []string          // tests that failed once and passed when they ran alone
	took    time.Duration
}

func (o *outcome) String() string {
	text := fmt.Sprintf("%s: %d tests in %v", o.dir, len(o.results), o.took.Round(time.Second))
	if failed := o.failed(); len(failed) > 0 {
		text += ", failed: " + strings.Join(failed, " ")
	}
	if o.broken != "" {
		text += ", " + o.broken
	}
	return text
}

// failed returns the names of the top-level tests that failed, sorted.
func (o *outcome) failed() (names []string) {
	for name, result := range o.results {
		if result == "fail" && !strings.Contains(name, "/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

const (
	again    = 3 // times that a failed test is run again, alone
	maxAgain = 5 // failed tests that are run again, at most
)

// onServer runs the binary on a server.
func (b binary) onServer(server string) *outcome {
	began := time.Now()
	o := &outcome{binary: b}
	o.results, o.broken = b.run(server, b.flags...)
	o.took = time.Since(began)
	return o
}

// retry runs the tests that failed again, alone, because the machine may have been too busy for them: what fails on a
// server because of the server fails then, too.
func (o *outcome) retry(server string) {
	failed := o.failed()
	if o.broken != "" || len(failed) > maxAgain {
		return
	}
	for _, name := range failed {
		second, broken := o.run(server, append(slices.Clone(o.flags), "-test.run=^"+regexp.QuoteMeta(name)+"$",
			fmt.Sprintf("-test.count=%d", again))...)
		if broken == "" && second[name] == "pass" {
			o.flaky = append(o.flaky, name)
			o.replace(name, second)
		}
	}
}

// replace takes the results of one top-level test from another run, which may have had other subtests.
func (o *outcome) replace(top string, second map[string]string) {
	maps.DeleteFunc(o.results, func(name, _ string) bool { return strings.HasPrefix(name, top+"/") })
	maps.Copy(o.results, second)
}

func (b binary) run(server string, flags ...string) (results map[string]string, broken string) {
	args := append([]string{"tool", "test2json", b.path, "-test.v=test2json", "-test.parallel=8", "-test.timeout=8m"},
		flags...)
	cmd := exec.Command("go", args...)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), "LOCKER_TEST_SERVER="+server)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	results, failures, panicked := read(out.Bytes())
	for name, text := range failures {
		fmt.Printf("%s %s failed on %s\n\t%s\n", b.dir, name, filepath.Base(filepath.Dir(server)),
			strings.ReplaceAll(text, "\n", "\n\t")) // indented, so that nobody takes it for the outcome of this program
	}
	switch {
	case panicked:
		broken = "it panicked, and the tests after that were not run"
	case err != nil && len(failures) == 0:
		broken = fmt.Sprintf("no test failed, but the program did: %v %s", err, strings.TrimSpace(stderr.String()))
	}
	return results, broken
}

// read reads the output of test2json. It returns the results, the output of the top-level tests that failed, and
// whether there was a panic. A test that has begun and not ended has failed. Of several runs of one test the worst
// counts.
func read(out []byte) (results, failures map[string]string, panicked bool) {
	results, failures = map[string]string{}, map[string]string{}
	said := map[string]*strings.Builder{} // by top-level test; "" is outside of tests
	for line := range bytes.Lines(out) {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		top, _, _ := strings.Cut(e.Test, "/")
		if said[top] == nil {
			said[top] = &strings.Builder{}
		}
		said[top].WriteString(e.Output)
		panicked = panicked || strings.HasPrefix(e.Output, "panic: ")
		switch old := results[e.Test]; {
		case e.Test == "" || old == "fail":
		case e.Action == "run" && old == "":
			results[e.Test] = "running"
		case e.Action == "pass", e.Action == "fail", e.Action == "skip":
			results[e.Test] = e.Action
		}
	}
	for name, result := range results {
		if result == "running" {
			results[name] = "fail"
		}
		if results[name] == "fail" && said[name] != nil { // a top-level test
			failures[name] = said[name].String()
		}
	}
	return results, failures, panicked
}
