// Retest is go test, except that a failed test is run ten more times, alone. If it passes every time, it is printed as
// FLAKY, with both outputs, and the run continues. If it fails again, the run fails. Alone means also that no other
// retest runs in the same directory at that time.
//
//	go run ./internal/testing/retest -C cmd/locker -race -timeout 8m ./...
//
// Its arguments are those of go test. Patterns of packages begin with a dot.
//
// The run fails at once if a package does not build, panics, or fails without a failed test, or if more than five tests
// fail.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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
type test struct{ pkg, name, output string }

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
	failed, err := goTest(out, args)
	switch {
	case err != nil:
		return err
	case len(failed) > maxFlaky:
		return fmt.Errorf("%d tests failed", len(failed))
	}
	if len(failed) == 0 {
		return nil
	}
	if err := errors.Join(lock(syscall.LOCK_UN), lock(syscall.LOCK_EX)); err != nil {
		return err
	}
	dir, rest := split(args)
	flags := slices.Concat(dir, slices.DeleteFunc(slices.Clone(rest),
		func(arg string) bool { return strings.HasPrefix(arg, "./") || arg == "." }))
	for _, t := range failed {
		fmt.Fprintf(out, "=== %s of %s failed and is run %d times more, alone\n", t.name, t.pkg, again)
		rerun := slices.Concat(flags, []string{"-count", fmt.Sprint(again), "-run", "^" + t.name + "$", t.pkg})
		second, err := goTest(out, rerun)
		switch {
		case err != nil:
			return err
		case len(second) > 0:
			return fmt.Errorf("%s of %s failed again", t.name, t.pkg)
		}
		fmt.Fprintf(out, "FLAKY: %s of %s failed once and then passed %d times. Mend it. It had said:\n%s", t.name,
			t.pkg, again, t.output)
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

// goTest runs go test and prints its output, without the output of tests that pass. It returns the failed top-level
// tests, or an error if anything else went wrong.
func goTest(out io.Writer, args []string) (failed []test, err error) {
	dir, rest := split(args)
	args = slices.Concat([]string{"test"}, dir, []string{"-json"}, rest)
	cmd := exec.Command("go", args...) //nolint:gosec // the arguments of its caller
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	said := map[[2]string]*strings.Builder{} // by package and top-level test
	failures := map[string]int{}             // by package
	for lines := bufio.NewReader(pipe); ; {
		line, readErr := lines.ReadString('\n')
		var e event
		if line != "" && json.Unmarshal([]byte(line), &e) != nil {
			e = event{Action: "output", Output: line}
		}
		if why := e.take(out, said, failures, &failed); why != nil && err == nil {
			err = why
		}
		if readErr != nil {
			break
		}
	}
	if exit := cmd.Wait(); exit != nil && len(failed) == 0 && err == nil {
		err = exit
	}
	return failed, err
}

// take handles one event. It returns an error for failures that cannot be retried.
func (e event) take(out io.Writer, said map[[2]string]*strings.Builder, failures map[string]int, failed *[]test) error {
	name, sub, _ := strings.Cut(e.Test, "/")
	of := [2]string{e.Package, name}
	switch {
	case e.Action == "build-output", e.Action == "output" && name == "":
		_, _ = io.WriteString(out, e.Output)
		if strings.HasPrefix(e.Output, "panic: ") {
			return fmt.Errorf("%s panicked", e.Package)
		}
	case e.Action == "build-fail":
		return fmt.Errorf("a package does not build")
	case e.Action == "output":
		if said[of] == nil {
			said[of] = &strings.Builder{}
		}
		said[of].WriteString(e.Output)
		if strings.HasPrefix(e.Output, "panic: ") { // the tests after it were not run
			_, _ = io.WriteString(out, said[of].String())
			return fmt.Errorf("%s of %s panicked", name, e.Package)
		}
	case e.Action == "fail" && name == "":
		if failures[e.Package] == 0 {
			return fmt.Errorf("%s failed without a failed test", e.Package)
		}
	case e.Action == "fail" && sub == "":
		failures[e.Package]++
		t := test{pkg: e.Package, name: name}
		if b := said[of]; b != nil {
			t.output = b.String()
		}
		_, _ = io.WriteString(out, t.output)
		if !slices.ContainsFunc(*failed, func(f test) bool { return f.pkg == t.pkg && f.name == t.name }) {
			*failed = append(*failed, t)
		}
		delete(said, of)
	case (e.Action == "pass" || e.Action == "skip") && name != "" && sub == "":
		delete(said, of)
	}
	return nil
}
