// Package section writes what a trial has found into a page of the documentation.
package section

import (
	"fmt"
	"os"
	"strings"
)

// Write replaces the part of a file that a command writes. The part begins after a line that says so, and ends before
// the next line of that kind, or at the end of the file.
func Write(path, command, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const begins = "<!-- what follows is written by "
	mark := begins + command + " -->\n"
	head, tail, found := strings.Cut(string(old), mark)
	if !found {
		return fmt.Errorf("%s has no line %q", path, strings.TrimSpace(mark))
	}
	rest := ""
	if i := strings.Index(tail, begins); i >= 0 {
		rest = "\n" + tail[i:]
	}
	return os.WriteFile(path, []byte(head+mark+"\n"+text+rest), 0o644)
}
