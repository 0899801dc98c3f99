package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// suite is a column of the table: the tests of some packages.
type suite struct {
	name     string
	packages []string // directories; a pattern of [filepath.Glob] takes all that match and have tests
	flags    []string // of the test binary
}

// notHere leaves out tests that need no server or that measure the machine.
const notHere = "VirtualTime|TenThousand|AThousand|Allocations|Measure"

// suites has what depends on the server. Tests of one package with few servers run in full, so that each driver is
// tested on each server. Where drivers make no difference to the server, -short does.
var suites = []suite{
	{"driver suite", []string{"drivers/*"}, []string{"-test.short"}},
	{"one server", []string{"single"}, []string{"-test.skip=" + notHere}},
	{"Redlock", []string{"redlock"}, []string{"-test.run=" + realQuorums, "-test.skip=" + notHere}},
	{"protocol", []string{"internal/node", "internal/script", "internal/pipeline"}, nil},
	{"doctor", []string{"internal/settings", "cmd/locker/internal/doctor"}, []string{"-test.short"}},
	{"faults", []string{"internal/testing/trials/faults", "internal/testing/trials/recovery"},
		[]string{"-test.short"}},
}

// realQuorums matches the tests of Redlock in which real servers matter most. The others judge the arithmetic of
// quorums, which no server changes.
const realQuorums = "^Test(.*Conformance|Errors|WrongPassword|Minority|Majority|NewNodesRest|NodeThatForgot" +
	"|LeaseHeals|Server|Warnings|Inspection|ForceRelease|Settings|Contention|NoOrphans|Turns|OneCommandPerNode|Verify)"

// binary is the test program of one package.
type binary struct {
	suite string
	dir   string // of the package, in which its tests run
	path  string
	flags []string
}

// packagesOf returns the directories of s that have tests, sorted.
func packagesOf(s suite) (dirs []string, err error) {
	for _, pattern := range s.packages {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		found = slices.DeleteFunc(found, func(dir string) bool {
			tests, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
			return len(tests) == 0
		})
		if len(found) == 0 {
			return nil, fmt.Errorf("suite %s: %s has no tests", s.name, pattern)
		}
		dirs = append(dirs, found...)
	}
	return dirs, nil
}

// build compiles the tests once for all servers, so that the same code runs on each of them. Packages may belong to
// different modules: the go command runs in each package's directory.
func build(dir string, suites []suite) (all []binary, err error) {
	for _, s := range suites {
		packages, err := packagesOf(s)
		if err != nil {
			return nil, err
		}
		for _, p := range packages {
			b := binary{s.name, p, filepath.Join(dir, strings.ReplaceAll(p, "/", "-")), s.flags}
			cmd := compiler(p, b.path)
			if err := cmd.Run(); err != nil {
				return nil, fmt.Errorf("the tests of %s cannot be built: %w", p, err)
			}
			all = append(all, b)
		}
	}
	return all, nil
}

// compiler returns the command that compiles the tests of a package to a file.
func compiler(pkg, file string) *exec.Cmd {
	cmd := exec.Command("go", "test", "-c", "-o", file)
	cmd.Stderr, cmd.Dir = os.Stderr, pkg
	return cmd
}
