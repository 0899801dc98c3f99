package redistest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// DocumentedUser creates the user of docs/redis.md, "locker" with the password "password", with exactly the rights that
// the page lists for this server. more are rights that the page lists for some uses only, such as "+info". It returns
// the names of the commands that the user may call.
func (s *Server) DocumentedUser(tb testing.TB, more ...string) (commands []string) {
	tb.Helper()
	page := document(tb, "redis.md")
	_, page, _ = strings.Cut(page, "\n## A user for locks\n")
	page, _, _ = strings.Cut(page, "\n## ")
	page = strings.ReplaceAll(page, `\|`, "|") // in a table
	var rules [][]string
	for _, block := range strings.Split(page, "\nACL SETUSER ")[1:] {
		rule, _, _ := strings.Cut(block, "```")
		rules = append(rules, strings.Fields(rule))
	}
	channel := func(word string) bool { return strings.HasPrefix(word, "&") }
	if len(rules) != 1 || !slices.ContainsFunc(rules[0], channel) {
		tb.Fatalf("redistest: want one rule, with channels, seen %q", rules)
	}
	rule := rules[0]
	if !s.ChannelRights(tb) {
		rule = slices.DeleteFunc(rule, channel)
	}
	for _, native := range []string{"delex", "delifeq"} {
		if s.Knows(tb, native) {
			more = append(more, "+"+native)
		} else if !strings.Contains(page, "`+"+native+"`") {
			tb.Errorf("redistest: the page does not list +%s", native)
		}
	}
	args := []any{"ACL", "SETUSER"}
	for _, right := range more {
		if !strings.Contains(page, "`"+right+"`") {
			tb.Errorf("redistest: the page does not list %s", right)
		}
	}
	for _, word := range append(rule, more...) {
		args = append(args, word)
		if name, ok := strings.CutPrefix(word, "+"); ok {
			commands = append(commands, name)
		}
	}
	s.Cmd(tb, args...)
	return commands
}

// document returns a page of the documentation of this module, to which the working directory of the test belongs.
func document(tb testing.TB, name string) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	for {
		if text, err := os.ReadFile(filepath.Join(dir, "docs", name)); err == nil {
			return string(text)
		}
		if dir == filepath.Dir(dir) {
			tb.Fatalf("redistest: no docs/%s above the working directory", name)
		}
		dir = filepath.Dir(dir)
	}
}
