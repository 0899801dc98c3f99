package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each test builds and runs tests several times. Only .ci/run uses the command.
func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Short() {
		os.Exit(m.Run())
	}
}

func TestRetest(t *testing.T) {
	for _, tt := range []struct {
		tests string
		fails string // text of the error; empty: the run passes
		says  []string
	}{
		{"TestPasses", "", []string{"ok  \tflaky"}},
		{"TestPasses|TestFailsOnce", "", []string{
			"FLAKY: TestFailsOnce of flaky failed once", "the first time", "the file is there",
		}},
		{"TestFailsOnce|TestFails$", "TestFails of flaky failed again", []string{"FLAKY: TestFailsOnce", "every time"}},
		{"TestSubtestFailsOnce", "", []string{"FLAKY: TestSubtestFailsOnce of flaky failed once and then passed 10"}},
		{"TestSubtestFailsWithOthers", "TestSubtestFailsWithOthers of flaky failed again", []string{"not alone"}},
		{"TestNewNames", "TestNewNames of flaky failed again", []string{"every time"}},
		{"TestIsAlone", "", []string{"FLAKY: TestIsAlone of flaky failed once", "beside others"}},
		{"TestPanics", "panicked", []string{"no accident"}},
		{"TestFailsOnce|TestDies", "TestDies of flaky has begun and not ended", []string{"the first time", "its last words"}},
		{"TestRacesOnce", "TestRacesOnce of flaky has a data race", []string{"race detected"}},
		{"TestReportsOnce", "TestReportsOnce of flaky has a data race", []string{"DATA RACE"}},
	} {
		t.Run(tt.tests, func(t *testing.T) {
			t.Setenv("MARK", filepath.Join(t.TempDir(), "mark"))
			var out strings.Builder
			err := run(&out, []string{"-C", "testdata/flaky", "-count=1", "-run", tt.tests, "."}) // a module of its own
			if (err == nil) != (tt.fails == "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("%v, want %q\n%s", err, tt.fails, out.String())
			}
			for _, want := range tt.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("it does not say %q:\n%s", want, out.String())
				}
			}
		})
	}
}

// The tests are run again in the same module.
func TestRerunKeepsTheDirectory(t *testing.T) {
	for _, tt := range []struct {
		name, from string
		dir        []string
	}{
		{"another", ".", []string{"-C", "testdata/flaky"}},
		{"its own", "testdata/flaky", []string{"-C", "."}},
		{"its own, not named", "testdata/flaky", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("MARK", filepath.Join(t.TempDir(), "mark"))
			t.Chdir(tt.from)
			var out strings.Builder
			if err := run(&out, append(tt.dir, "-count=1", "-run", "TestFailsOnce", "./...")); err != nil {
				t.Errorf("%v\n%s", err, out.String())
			} else if !strings.Contains(out.String(), "FLAKY: TestFailsOnce of flaky failed once") {
				t.Errorf("it does not say that the test was run again:\n%s", out.String())
			}
		})
	}
}

func TestRetestOfWhatDoesNotBuild(t *testing.T) {
	var out strings.Builder
	if err := run(&out, []string{"./testdata/nothing"}); err == nil {
		t.Errorf("a package that is not there passes:\n%s", out.String())
	}
}
