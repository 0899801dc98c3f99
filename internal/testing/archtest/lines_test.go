package archtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// columns is how long a line may be. A tab counts as one.
const columns = 120

// written lists the endings of files that people write. go.sum, images and recorded data are not among them.
var written = []string{".go", ".lua", ".pml", ".sql", ".c", ".md", ".yml", ".sh", "Makefile", ".ci/run",
	"scripts/prove-install", "scripts/servers", "scripts/use-clone"}

// tooLong returns the numbers of the lines of text that are too long. In Markdown it leaves out what cannot be wrapped:
// rows of tables, what programs print, what programs have written, and addresses.
func tooLong(path, text string) (numbers []int) {
	prose, printed, generated := strings.HasSuffix(path, ".md"), false, false
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\n")
		if prose {
			switch {
			case strings.HasPrefix(strings.TrimSpace(line), "```"):
				printed = !printed
			case strings.HasPrefix(line, "<!-- what follows is written by "):
				generated = true
			case strings.HasPrefix(line, "#"):
				generated = false
			}
			if printed || generated || strings.HasPrefix(strings.TrimSpace(line), "|") ||
				strings.Contains(line, "](https://") && !strings.Contains(line, " ") {
				continue
			}
		}
		if utf8.RuneCountInString(line) > columns {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// unmerged returns the numbers of the lines that git leaves where two changes conflict.
func unmerged(text string) (numbers []int) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if strings.HasPrefix(line, "<<<<<<< ") || strings.HasPrefix(line, ">>>>>>> ") {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

func TestLinesAreShortAndMerged(t *testing.T) {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git says which files people write; run this test in a checkout, with git installed: %v", err)
	}
	checked := 0
	for name := range strings.SplitSeq(string(out), "\x00") {
		if !slices.ContainsFunc(written, func(end string) bool { return strings.HasSuffix(name, end) }) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		checked++
		for _, n := range tooLong(name, string(text)) {
			t.Errorf("%s:%d has more than %d columns", name, n, columns)
		}
		for _, n := range unmerged(string(text)) {
			t.Errorf("%s:%d: a conflict of two changes was not resolved", name, n)
		}
	}
	if checked < 500 {
		t.Errorf("only %d files were found", checked)
	}
}

func TestLongLinesAreFound(t *testing.T) {
	long := strings.Repeat("é ", columns/2) + "x\n"
	for _, tt := range []struct {
		path, text string
		want       []int
	}{
		{"a.go", strings.TrimSuffix(long, "x\n") + "\n", nil},
		{"a.go", "package p\n// " + long, []int{2}},
		{"a.go", "| " + long, []int{1}},
		{"a.md", long, []int{1}},
		{"a.md", "| " + long, nil},
		{"a.md", "```\n" + long + "```\n" + long, []int{4}},
		{"a.md", "<!-- what follows is written by make faults -->\n" + long + "# A heading\n" + long, []int{4}},
		{"a.md", "second](https://" + strings.Repeat("x", columns) + ");\n", nil},
		{"Makefile", "bench: ## " + long, []int{1}},
	} {
		if got := tooLong(tt.path, tt.text); fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %.60q: lines %v, want %v", tt.path, tt.text, got, tt.want)
		}
	}
}

func TestConflictsAreFound(t *testing.T) {
	text := "| a |\n<<<<<<< HEAD\n| b |\n=======\n| c |\n>>>>>>> other\n"
	if got := unmerged(text); !slices.Equal(got, []int{2, 6}) {
		t.Errorf("lines %v, want 2 and 6", got)
	}
}
