package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestRetest(t *testing.T) {
	for _, tt := range []struct {
		tests string
		fails string // what the error says; empty: it passes
		says  []string
	}{
		{"TestPasses", "", []string{"ok  \tflaky"}},
		{"TestPasses|TestFailsOnce", "", []string{"FLAKY: TestFailsOnce of flaky failed once", "the first time"}},
		{"TestFailsOnce|TestFails$", "TestFails of flaky failed again", []string{"FLAKY: TestFailsOnce", "every time"}},
		{"TestPanics", "panicked", []string{"no accident"}},
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

func TestRetestOfWhatDoesNotBuild(t *testing.T) {
	var out strings.Builder
	if err := run(&out, []string{"./testdata/nothing"}); err == nil {
		t.Errorf("a package that is not there passes:\n%s", out.String())
	}
}
