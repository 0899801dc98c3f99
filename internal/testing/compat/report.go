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

// header is the first two lines of the table.
var header = []string{"| server | version | tests | date | commit |", "| --- | --- | --- | --- | --- |"}

// row returns the line of a server. The tests that failed, or failed once, are in notes.
func (s *server) row() string {
	result := "pass"
	switch {
	case s.missing != nil:
		return fmt.Sprintf("| %s | not tested: %s | – | %s | %s |", s.name,
			strings.ReplaceAll(s.missing.Error(), "|", "/"), s.date.Format(time.DateOnly), s.commit)
	case len(s.tally.failed) > 0:
		result = fmt.Sprintf("**%d fail**", len(s.tally.failed))
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s |", s.name, s.version, result, s.date.Format(time.DateOnly), s.commit)
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

// rewrite replaces the row of a server in the table of a file, and leaves those of other servers.
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
	rows, notes := []string{s.row()}, s.notes()
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
	lines := slices.Concat([]string{above + marker, ""}, header, rows, []string{""})
	if len(notes) > 0 {
		lines = slices.Concat(lines, notes, []string{""})
	}
	return strings.Join(lines, "\n"), nil
}

// first returns the name of the server in a row or a note.
func first(line string) string { return strings.TrimSuffix(strings.Fields(line)[1], ":") }
