// Package section writes what a trial has found into a page of the documentation.
package section

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// next begins the part of another command, or prose with a heading of its own.
var next = regexp.MustCompile("(?m)^(<!-- what follows is written by |## )")

// Write replaces the part of a file that a command writes. The part begins after a line that says so, and ends before
// the next line of that kind, the next heading of the second level, or at the end of the file.
func Write(path, command, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	mark := "<!-- what follows is written by " + command + " -->\n"
	head, tail, found := strings.Cut(string(old), mark)
	if !found {
		return fmt.Errorf("%s has no line %q", path, strings.TrimSpace(mark))
	}
	rest := ""
	if at := next.FindStringIndex(tail); at != nil {
		rest = "\n" + tail[at[0]:]
	}
	return os.WriteFile(path, []byte(head+mark+"\n"+text+rest), 0o644) //nolint:gosec // a document in the repository
}
