package archtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rows returns the packages that a table names in its first column, in backticks. A row may name several.
func rows(table string) (names []string) {
	for line := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		for i, part := range strings.Split(first, "`") {
			if i%2 == 1 {
				names = append(names, part)
			}
		}
	}
	return names
}

// mistakes returns what is wrong with the rows of a table: rows without a package, and packages without a row. A row
// that ends in "/…" stands for all packages below a directory.
func mistakes(rows, packages []string) (wrong []string) {
	covers := func(row, pkg string) bool {
		dir, below := strings.CutSuffix(row, "/…")
		return pkg == dir && !below || below && strings.HasPrefix(pkg, dir+"/")
	}
	for _, row := range rows {
		if !slices.ContainsFunc(packages, func(pkg string) bool { return covers(row, pkg) }) {
			wrong = append(wrong, "there is no package "+row)
		}
	}
	for _, pkg := range packages {
		if !slices.ContainsFunc(rows, func(row string) bool { return covers(row, pkg) }) {
			wrong = append(wrong, "there is no row for "+pkg)
		}
	}
	return wrong
}

func TestContributingNamesEveryPackage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Where things are\n")
	section, _, _ = strings.Cut(section, "\n## ")
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range packages(t) {
		name, err := filepath.Rel(top, p.dir)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, filepath.ToSlash(name))
	}
	for _, wrong := range mistakes(rows(section), names) {
		t.Errorf("the table of CONTRIBUTING.md: %s", wrong)
	}
}

func TestWrongRowsAreFound(t *testing.T) {
	packages := []string{".", "single", "examples/cron"}
	for table, want := range map[string][]string{
		"| `.` | users |\n| `single` | Redis |\n| `examples/…` | programs |\n": nil,
		"| `.`, `single` | `text` |\n| `examples/cron` | a program |\n":        nil,
		"| `.` | users |\n| `examples/…` | programs |\n":                       {"there is no row for single"},
		"| `.`, `singles`, `single` | users |\n| `examples/…` | programs |\n":  {"there is no package singles"},
		"| `.`, `single` | users |\n| `examples` | programs |\n": {
			"there is no package examples", "there is no row for examples/cron"},
		"| `.`, `single/…` | users |\n| `examples/…` | programs |\n": {
			"there is no package single/…", "there is no row for single"},
	} {
		if got := mistakes(rows(table), packages); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", table, got, want)
		}
	}
}
