// Mutants plants bugs in a copy of the repository, one at a time, and checks that the listed tests, the simulation or
// the model notice each bug. It prints a table. It fails if a bug survives, or if a bug that is listed as harmless does
// not.
//
//	go run ./internal/testing/mutants [-jobs 2] [REGEXP]     only those whose names match
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// mutant is one planted bug.
type mutant struct {
	name    string
	patches []patch
	killers []killer
}

// patch replaces a text that a file has exactly once.
type patch struct{ file, before, after string }

// killer is a test, a simulation or a model that may notice a bug.
type killer struct {
	by   string   // its name in the table
	args []string // of go test; for the model, of model/run.sh
	// survives is the reason why the killer does not notice the bug, if that is expected.
	survives string
}

// test runs some tests of a package.
func test(pkg, names string) killer {
	return killer{by: pkg + " " + names,
		args: []string{"test", "-vet=off", "-count=1", "-timeout=5m", "./" + pkg, "-run", names}}
}

// testIn runs some tests of a module of its own.
func testIn(module, names string) killer {
	k := test(".", names)
	k.by, k.args = module+" "+names, slices.Insert(k.args, 1, "-C", module)
	return k
}

// simulated plays episodes until a rule is broken.
func simulated(seeds int) killer {
	return killer{by: fmt.Sprintf("simulation, %d seeds", seeds),
		args: []string{"test", "-C", "internal/testing/trials", "-vet=off", "-count=1",
			"-timeout=15m", "./sim", "-run", "^TestSimulation$", "-seed=1", "-once", fmt.Sprint("-seeds=", seeds)}}
}

// modelled searches the model with the same bug.
func modelled(flags ...string) killer {
	return killer{by: "model " + strings.Join(flags, " "), args: append([]string{"trace"}, flags...)}
}

// times repeats a test that notices the bug only if its goroutines run in a certain order.
func (k killer) times(n int) killer {
	k.args = append(k.args, fmt.Sprint("-count=", n))
	return k
}

func (k killer) but(why string) killer {
	k.survives = why
	return k
}

func (p patch) apply(root string) error {
	name := filepath.Join(root, p.file)
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if n := bytes.Count(text, []byte(p.before)); n != 1 {
		return fmt.Errorf("%s has %q %d times, not once", p.file, p.before, n)
	}
	return os.WriteFile(name, bytes.Replace(text, []byte(p.before), []byte(p.after), 1), 0o600)
}

var jobs = flag.Int("jobs", 2, "how many to try at once")

func main() {
	flag.Parse()
	pattern := "."
	if flag.NArg() > 0 {
		pattern = flag.Arg(0)
	}
	if err := run(pattern); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(pattern string) error {
	chosen, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	todo := make(chan mutant, len(mutants))
	for _, m := range mutants {
		if chosen.MatchString(m.name) {
			todo <- m
		}
	}
	close(todo)
	began, count := time.Now(), len(todo)
	fmt.Printf("%-52s %-9s %8s  %s\n", "mutant", "", "", "by")
	var mu sync.Mutex
	var errs []error
	bad := 0
	var workers sync.WaitGroup
	for range *jobs {
		workers.Go(func() {
			unexpected, err := work(todo, &mu)
			mu.Lock()
			defer mu.Unlock()
			bad += unexpected
			errs = append(errs, err)
		})
	}
	workers.Wait()
	fmt.Printf("%d mutants in %v\n", count, time.Since(began).Round(time.Second))
	if bad > 0 {
		errs = append(errs, fmt.Errorf("%d results are not as they should be", bad))
	}
	return errors.Join(errs...)
}

// work tries mutants in its own copy of the repository.
func work(todo <-chan mutant, printing *sync.Mutex) (unexpected int, err error) {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := copyRepository(dir); err != nil {
		return 0, err
	}
	for m := range todo {
		rows, bad, failure := m.run(dir)
		printing.Lock()
		fmt.Print(rows)
		printing.Unlock()
		if failure != nil { // the other mutants are still tried
			err = errors.Join(err, fmt.Errorf("%s: %w", m.name, failure))
		}
		unexpected += bad
	}
	return unexpected, err
}

// copyRepository copies the files that git tracks, with the content of the working tree.
func copyRepository(to string) error {
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, and not committed yet
		} else if err != nil {
			return err
		}
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o750); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), text, info.Mode().Perm()|0o200); err != nil {
			return err
		}
	}
	return nil
}

// run plants the bug, runs all killers, and removes the bug.
func (m mutant) run(dir string) (rows string, unexpected int, err error) {
	for _, p := range m.patches {
		text, err := os.ReadFile(filepath.Join(dir, p.file))
		if err != nil {
			return "", 0, err
		}
		defer func() { err = errors.Join(err, os.WriteFile(filepath.Join(dir, p.file), text, 0o600)) }()
		if err := p.apply(dir); err != nil {
			return "", 0, err
		}
	}
	name := m.name
	for _, k := range m.killers {
		began := time.Now()
		killed, how, err := k.try(dir)
		if err != nil {
			return rows, unexpected, err
		}
		word := "survived"
		if killed {
			word = "killed"
		}
		if killed != (k.survives == "") {
			word = strings.ToUpper(word)
			unexpected++
		}
		if k.survives != "" {
			how = k.survives + " " + how
		}
		rows += fmt.Sprintf("%-52s %-9s %7.1fs  %s: %s\n", name, word, time.Since(began).Seconds(), k.by, how)
		name = ""
	}
	return rows, unexpected, nil
}

var (
	failed = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)|^ +sim_test\.go:\d+: ([A-Z]+): |` +
		`^violated: (\w+)|^(panic: .*|fatal error: .*)`)
	noTests = regexp.MustCompile(`no tests to run`)
)

// try reports whether the killer notices the bug, and how. If the killer cannot run, try returns an error.
func (k killer) try(dir string) (killed bool, how string, err error) {
	cmd := command(dir, "go", k.args...)
	if k.args[0] == "trace" {
		cmd = command(dir, "model/run.sh", k.args...)
	}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return false, "", err
	}
	found := failed.FindAllSubmatch(out, -1)
	switch {
	case noTests.Match(out):
		return false, "", fmt.Errorf("%s: no such tests", k.by)
	case err == nil:
		return false, "", nil
	case len(found) == 0:
		return false, "", fmt.Errorf("%s: %s", k.by, out)
	}
	seen := map[string]bool{}
	var names []string
	for _, f := range found {
		what := string(bytes.Join(f[1:], nil))
		if !seen[what] && !strings.Contains(what, "/") && what != "TestSimulation" && len(names) < 4 {
			names = append(names, what)
		}
		seen[what] = true
	}
	return true, strings.Join(names, ", "), nil
}

// command runs in its own process group, so that its children end with it at a time-out.
func command(dir, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		defer cancel()
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	cmd.WaitDelay = time.Second
	return cmd
}
