package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// marker stands before the table. What is above it is written by people.
const marker = "<!-- what follows is written by make compat -->"

// server has the results of one server.
type server struct {
	name    string
	version string
	missing error // why it could not be tested; nil: it was
	date    time.Time
	commit  string
	tally   *tally
}

func (s *server) sound() bool { return s.missing == nil && len(s.tally.failed) == 0 }

// header returns the first two lines of the table.
func header() []string {
	head, line := "| server | version | driver |", "| --- | --- | --- |"
	for _, c := range suites {
		head, line = head+" "+c.name+" |", line+" --- |"
	}
	return []string{head + " date | commit |", line + " --- | --- |"}
}

// rows returns the lines of one server: one for each driver, one for the tests that are not about a driver, and one for
// each test that failed, or that failed once.
func (s *server) rows() (rows []string) {
	end := fmt.Sprintf("%s | %s |", s.date.Format(time.DateOnly), s.commit)
	if s.missing != nil {
		return []string{fmt.Sprintf("| %s | not tested: %v | |%s %s", s.name,
			strings.ReplaceAll(s.missing.Error(), "|", "/"), strings.Repeat(" – |", len(suites)), end)}
	}
	for _, driver := range append(slices.Clone(s.tally.drivers), anyDriver) {
		row := fmt.Sprintf("| %s | %s | %s |", s.name, s.version, driver)
		for _, c := range suites {
			row += fmt.Sprintf(" %v |", s.tally.cells[[2]string{driver, c.name}])
		}
		rows = append(rows, row+" "+end)
	}
	return rows
}

// notes returns the lines below the table that belong to a server.
func (s *server) notes() (lines []string) {
	if s.missing != nil {
		return nil
	}
	for _, name := range s.tally.failed {
		lines = append(lines, fmt.Sprintf("- %s: %s failed.", s.name, name))
	}
	for _, name := range s.tally.flaky {
		lines = append(lines, fmt.Sprintf("- %s: %s failed once, and passed %d times when run again.", s.name, name, again))
	}
	return lines
}

// rewrite replaces the rows of a server in the table of a file, and leaves those of other servers.
func rewrite(file string, s *server) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	merged, err := merge(string(text), s)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(merged), 0o644) //nolint:gosec // a page of the documentation
}

func merge(text string, s *server) (string, error) {
	above, below, found := strings.Cut(text, marker)
	if !found {
		return "", fmt.Errorf("it has no line %q", marker)
	}
	rows, notes := s.rows(), s.notes()
	for _, line := range strings.Split(below, "\n") {
		switch {
		case strings.HasPrefix(line, "| "+s.name+" |"), strings.HasPrefix(line, "- "+s.name+":"):
		case strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| server |") && !strings.HasPrefix(line, "| ---"):
			rows = append(rows, line)
		case strings.HasPrefix(line, "- "):
			notes = append(notes, line)
		}
	}
	byServer := func(a, b string) int { return strings.Compare(first(a), first(b)) }
	slices.SortStableFunc(rows, byServer)
	slices.SortStableFunc(notes, byServer)
	lines := slices.Concat([]string{above + marker, ""}, header(), rows, []string{""})
	if len(notes) > 0 {
		lines = slices.Concat(lines, notes, []string{""})
	}
	return strings.Join(lines, "\n"), nil
}

// first returns the name of the server in a row or a note.
func first(line string) string { return strings.TrimSuffix(strings.Fields(line)[1], ":") }
