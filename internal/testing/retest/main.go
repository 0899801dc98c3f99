// Retest is go test, except that a failed test is run ten more times, alone. If only some of its subtests failed, they
// are run ten times, and the whole test once. If it passes every time, it is printed as FLAKY, with both outputs, and
// the run continues. If it fails again, the run fails. Alone means also that no other retest runs in the same directory
// at that time.
//
//	go run ./internal/testing/retest -C cmd/locker -race -timeout 8m ./...
//
// Its arguments are those of go test. Patterns of packages begin with a dot.
//
// The run fails without another try if a package does not build, panics, ends in the midst of a test, or fails without
// a failed test, if the race detector has found something, or if more than five tests fail.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

const (
	again    = 10 // times that a failed test is run again
	maxFlaky = 5  // failed tests that are run again, at most
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Println("FAIL:", err)
		os.Exit(1)
	}
}

// test is a failed test with its output.
type test struct {
	pkg, name, output string
	subtests          []string // that failed and have none that did
}

// pattern returns the value of -run for a test or a subtest.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

func run(out io.Writer, args []string) error {
	directory, err := os.Open(".")
	if err != nil {
		return err
	}
	defer directory.Close()
	lock := func(how int) error { return syscall.Flock(int(directory.Fd()), how) }
	if err := lock(syscall.LOCK_SH); err != nil {
		return err
	}
	first, err := goTest(out, args)
	switch {
	case err != nil:
		return err
	case len(first.failed) > maxFlaky:
		return fmt.Errorf("%d tests failed", len(first.failed))
	case len(first.failed) == 0:
		return nil
	}
	if err := errors.Join(lock(syscall.LOCK_UN), lock(syscall.LOCK_EX)); err != nil {
		return err
	}
	dir, rest := split(args)
	flags := slices.Clip(slices.Concat(dir, slices.DeleteFunc(slices.Clone(rest),
		func(arg string) bool { return strings.HasPrefix(arg, "./") || arg == "." })))
	for _, t := range first.failed {
		fmt.Fprintf(out, "=== %s of %s failed and is run %d times more, alone\n", t.name, t.pkg, again)
		passed, times := "", 1 // that the whole test is run: ten runs of one that takes a minute would exceed the timeout
		if len(t.subtests) == 0 {
			times = again
		}
		for _, name := range append(t.subtests, t.name) {
			n := again
			if name == t.name {
				n = times
			}
			second, err := goTest(out, append(flags, "-count", fmt.Sprint(n), "-run", pattern(name), t.pkg))
			switch {
			case err != nil:
				return err
			case len(second.failed) > 0:
				return fmt.Errorf("%s of %s failed again", name, t.pkg)
			case second.passes[name] < n: // there is no such subtest any more
				times = again
			}
			passed = second.passed
		}
		fmt.Fprintf(out, "FLAKY: %s of %s failed once and then passed %d times. Mend it. When it failed, it said:\n%s"+
			"When it passed for the last time, it said:\n%s", t.name, t.pkg, again, t.output, passed)
	}
	return nil
}

// split separates -C and its directory, which the go command accepts only as the first flag, from the other arguments.
func split(args []string) (dir, rest []string) {
	if len(args) > 1 && args[0] == "-C" {
		return args[:2], args[2:]
	}
	return nil, args
}

// event is one line of go test -json; see go doc test2json.
type event struct{ Action, Package, Test, Output string }

// results is what one run of go test has found.
type results struct {
	failed   []test                         // top-level tests
	passed   string                         // the output of the last top-level test that passed
	said     map[[2]string]*strings.Builder // the output of tests that have not ended, by package and top-level test
	failures map[string]int                 // by package
	running  map[[2]string]bool             // top-level tests that have begun and not ended
	subtests map[[2]string][]string         // that failed and have none that did, by package and top-level test
	passes   map[string]int                 // by the name of a test or subtest, in all packages
}

// goTest runs go test and prints its output, without the output of tests that pass. It returns an error if anything but
// a test went wrong.
func goTest(out io.Writer, args []string) (r results, err error) {
	dir, rest := split(args)
	args = slices.Concat([]string{"test"}, dir, []string{"-json"}, rest)
	cmd := exec.Command("go", args...) //nolint:gosec // the arguments of its caller
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := cmd.Start(); err != nil {
		return r, err
	}
	r.said, r.failures = map[[2]string]*strings.Builder{}, map[string]int{}
	r.running, r.subtests, r.passes = map[[2]string]bool{}, map[[2]string][]string{}, map[string]int{}
	for lines := bufio.NewReader(pipe); ; {
		line, readErr := lines.ReadString('\n')
		var e event
		if line != "" && json.Unmarshal([]byte(line), &e) != nil {
			e = event{Action: "output", Output: line}
		}
		if why := r.take(out, e); why != nil && err == nil {
			err = why
		}
		if readErr != nil {
			break
		}
	}
	exit := cmd.Wait()
	for of := range r.running { // the process has ended in it, and the tests after it were not run
		_, _ = io.WriteString(out, r.end(of))
		if err == nil {
			err = fmt.Errorf("%s of %s has begun and not ended", of[1], of[0])
		}
	}
	if exit != nil && len(r.failed) == 0 && err == nil {
		err = exit
	}
	return r, err
}

// take handles one event. It returns an error for failures that cannot be retried.
func (r *results) take(out io.Writer, e event) error {
	name, sub, _ := strings.Cut(e.Test, "/")
	of := [2]string{e.Package, name}
	switch {
	case e.Action == "build-output", e.Action == "output" && name == "":
		_, _ = io.WriteString(out, e.Output)
		if strings.HasPrefix(e.Output, "panic: ") {
			return fmt.Errorf("%s panicked", e.Package)
		} else if raced(e.Output) {
			return fmt.Errorf("%s has a data race", e.Package)
		}
	case e.Action == "build-fail":
		return fmt.Errorf("a package does not build")
	case e.Action == "output":
		if r.said[of] == nil {
			r.said[of] = &strings.Builder{}
		}
		r.said[of].WriteString(e.Output)
		if strings.HasPrefix(e.Output, "panic: ") { // the tests after it were not run
			_, _ = io.WriteString(out, r.said[of].String())
			return fmt.Errorf("%s of %s panicked", name, e.Package)
		} else if raced(e.Output) { // the report is printed when the test ends
			return fmt.Errorf("%s of %s has a data race", name, e.Package)
		}
	case e.Action == "run" && sub == "":
		r.running[of] = true
	case e.Action == "fail" && name == "":
		if r.failures[e.Package] == 0 {
			return fmt.Errorf("%s failed without a failed test", e.Package)
		}
	case e.Action == "fail" && sub != "": // after those of its own subtests
		inner := func(name string) bool { return strings.HasPrefix(name, e.Test+"/") }
		if !slices.Contains(r.subtests[of], e.Test) && !slices.ContainsFunc(r.subtests[of], inner) {
			r.subtests[of] = append(r.subtests[of], e.Test)
		}
	case e.Action == "fail":
		r.failures[e.Package]++
		t := test{pkg: e.Package, name: name, output: r.end(of), subtests: r.subtests[of]}
		_, _ = io.WriteString(out, t.output)
		if !slices.ContainsFunc(r.failed, func(f test) bool { return f.pkg == t.pkg && f.name == t.name }) {
			r.failed = append(r.failed, t)
		}
	case e.Action == "skip" && sub == "":
		r.end(of)
	case e.Action == "pass" && name != "":
		r.passes[e.Test]++
		if sub == "" {
			r.passed = r.end(of)
		}
	}
	return nil
}

// raced reports whether output is of the race detector. A race that is seen once is there, even if the test passes ten
// times afterwards.
func raced(output string) bool {
	return strings.HasPrefix(output, "WARNING: DATA RACE") ||
		strings.Contains(output, "race detected during execution of test")
}

// end returns the output of a test that has ended, and forgets it.
func (r *results) end(of [2]string) string {
	b := r.said[of]
	delete(r.said, of)
	delete(r.running, of)
	if b == nil {
		return ""
	}
	return b.String()
}
