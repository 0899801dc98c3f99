package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// anyDriver is the row of tests that are not about one driver.
const anyDriver = "others"

// cell counts the tests of one suite with one driver. Only tests without subtests count.
type cell struct{ passed, failed int }

// tally has the results of one server.
type tally struct {
	drivers []string
	cells   map[[2]string]*cell // by driver and suite
	failed  []string
	flaky   []string
}

func newTally(drivers []string) *tally { return &tally{drivers: drivers, cells: map[[2]string]*cell{}} }

// add counts the tests of an outcome. Skipped tests do not count.
func (t *tally) add(o *outcome) {
	for name, result := range o.results {
		if result == "skip" || parent(name, o.results) {
			continue
		}
		for _, driver := range t.driversOf(o.dir, name) {
			c := t.cell(driver, o.suite)
			if result == "pass" {
				c.passed++
			} else {
				c.failed++
			}
		}
	}
	for _, name := range o.failed() {
		if !slices.Contains(o.flaky, name) {
			t.failed = append(t.failed, o.dir+" "+name)
		}
	}
	if o.broken != "" {
		t.failed = append(t.failed, o.dir+": "+o.broken)
		t.cell(anyDriver, o.suite).failed++
	}
	for _, name := range o.flaky {
		t.flaky = append(t.flaky, o.dir+" "+name)
	}
	slices.Sort(t.failed)
	slices.Sort(t.flaky)
}

func (t *tally) cell(driver, suite string) *cell {
	at := [2]string{driver, suite}
	if t.cells[at] == nil {
		t.cells[at] = &cell{}
	}
	return t.cells[at]
}

// parent reports whether a test has subtests. A parent that failed counts if none of its subtests did.
func parent(name string, results map[string]string) bool {
	has, failed := false, false
	for other, result := range results {
		if strings.HasPrefix(other, name+"/") {
			has, failed = true, failed || result == "fail"
		}
	}
	return has && (results[name] != "fail" || failed)
}

// driversOf returns the drivers that a test is about: that of its package, or those that its name has as words.
func (t *tally) driversOf(dir, name string) (found []string) {
	if driver := filepath.Base(dir); slices.Contains(t.drivers, driver) {
		return []string{driver}
	}
	words := strings.FieldsFunc(name, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for _, driver := range t.drivers {
		if slices.Contains(words, driver) {
			found = append(found, driver)
		}
	}
	if len(found) == 0 {
		return []string{anyDriver}
	}
	return found
}

func (c *cell) String() string {
	switch {
	case c == nil:
		return "–"
	case c.failed > 0:
		return fmt.Sprintf("**%d of %d fail**", c.failed, c.passed+c.failed)
	default:
		return fmt.Sprint(c.passed)
	}
}
