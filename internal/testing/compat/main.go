// Compat runs the tests that depend on the server on each server of scripts/servers, and writes the results as a
// table.
//
//	go run ./internal/testing/compat -report docs/compatibility.md [server…]
//
// It runs in the root of the repository. Without names of servers it takes all of them. Rows of the report that belong
// to other servers stay, so that servers can be done one at a time. A server that cannot be installed has a row that
// says so. The exit code is 1 if there is such a row, or if a test failed.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

func main() {
	file := flag.String("report", "", "the `file` whose table is replaced; empty: the table is only printed")
	jobs := flag.Int("jobs", 4, "test binaries that run at the same time; most of their tests wait")
	flag.Parse()
	ok, err := run(*file, *jobs, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

func run(file string, jobs int, servers []string) (ok bool, err error) {
	if len(servers) == 0 {
		if servers, err = installable(); err != nil {
			return false, err
		}
	}
	dir, err := os.MkdirTemp("", "compat")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binaries, err := build(dir, suites)
	if err != nil {
		return false, err
	}
	ok = true
	for _, name := range servers { // one after the other, so that a server's tests are not slowed down by another's
		began := time.Now()
		s := examine(name, binaries, jobs)
		ok = ok && s.sound()
		fmt.Printf("%s: done in %v\n", name, time.Since(began).Round(time.Second))
		if file != "" { // after each server, so that an interrupted run has written what it knows
			if err := rewrite(file, s); err != nil {
				return false, err
			}
		}
		fmt.Println(s.row())
	}
	return ok, nil
}

// examine runs all binaries on one server.
func examine(name string, binaries []binary, jobs int) *server {
	s := &server{name: name, date: time.Now(), commit: commit(), tally: &tally{}}
	path, err := install(name)
	if err != nil {
		s.missing = err
		return s
	}
	if s.version, err = version(path); err != nil {
		s.missing = err
		return s
	}
	todo, done := make(chan binary, len(binaries)), make(chan *outcome)
	for _, b := range longestFirst(binaries) {
		todo <- b
	}
	close(todo)
	for range jobs {
		go func() {
			for b := range todo {
				done <- b.onServer(path)
			}
		}()
	}
	var outcomes []*outcome
	for range binaries {
		o := <-done
		fmt.Printf("%s: %s\n", name, o)
		outcomes = append(outcomes, o)
	}
	for _, o := range outcomes { // now nothing else runs
		o.retry(path)
		s.tally.add(o)
	}
	return s
}

// longestFirst returns the binaries with those first that take longest, so that they do not run alone in the end.
func longestFirst(all []binary) []binary {
	long := []string{"redlock", "single"}
	return slices.SortedStableFunc(slices.Values(all), func(a, b binary) int {
		return slices.Index(long, b.dir) - slices.Index(long, a.dir)
	})
}

// installable returns the names of the servers that scripts/servers knows.
func installable() ([]string, error) {
	out, err := exec.Command("scripts/servers").Output()
	return strings.Fields(string(out)), err
}

// install returns the path of a server, and installs the server if necessary.
func install(name string) (path string, err error) {
	var said strings.Builder
	cmd := exec.Command("scripts/servers", name)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return "", fmt.Errorf("%s", cmp.Or(lines[len(lines)-1], err.Error()))
	}
	return strings.TrimSpace(string(out)), nil
}

// version returns the name and version of a server, such as "Redis 7.0.15".
func version(path string) (string, error) {
	out, err := exec.Command(path, "--version").Output()
	words := strings.Fields(string(out))
	i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "v=") })
	if err != nil || i < 1 {
		return "", fmt.Errorf("%s --version: %q, %v", path, out, err) //nolint:errorlint // err may be nil
	}
	return words[0] + " " + strings.TrimPrefix(words[i], "v="), nil
}

// commit returns the commit of the working tree, with a + if something was changed since. It is empty outside of git.
func commit() string {
	out, _ := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	changed, _ := exec.Command("git", "status", "--porcelain", "--untracked-files=no", "--", ":!docs").Output()
	id := strings.TrimSpace(string(out))
	if len(changed) > 0 {
		id += "+"
	}
	return id
}
