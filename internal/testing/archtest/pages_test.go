package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	codeOf    = regexp.MustCompile("(?s)```.*?```") // in which a call of a generic function looks like a link
	linkOf    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	targetOf  = regexp.MustCompile("`make ([a-z-]+)")
	makeRules = regexp.MustCompile(`(?m)^([a-z-]+):`)
)

// anchors returns what links to the headings of a page name, as forges make it of the headings.
func anchors(page string) (names []string) {
	for line := range strings.Lines(page) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && line[0] == '#' {
			heading = linkOf.ReplaceAllString(strings.TrimSpace(heading), "]")
			names = append(names, strings.Map(func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
					return unicode.ToLower(r)
				}
				return -1
			}, heading))
		}
	}
	return names
}

// dangling returns what a page in the directory names and is not there: files, headings and targets of make.
func dangling(dir, page string, targets []string, read func(path string) (string, error)) (names []string) {
	for _, m := range linkOf.FindAllStringSubmatch(codeOf.ReplaceAllString(page, ""), -1) {
		path, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(path, ":") {
			continue // another site
		}
		to, err := page, error(nil)
		if path != "" {
			to, err = read(filepath.Join(dir, path))
		}
		headed := path == "" || strings.HasSuffix(path, ".md")
		if err != nil || anchor != "" && headed && !slices.Contains(anchors(to), anchor) {
			names = append(names, m[1])
		}
	}
	for _, m := range targetOf.FindAllStringSubmatch(page, -1) {
		if !slices.Contains(targets, m[1]) {
			names = append(names, "make "+m[1])
		}
	}
	return names
}

// text reads a file. A directory has no text.
func text(path string) (string, error) {
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return "", err
	}
	b, err := os.ReadFile(path)
	return string(b), err
}

func TestPagesPointToWhatExists(t *testing.T) {
	makefile, err := text(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, m := range makeRules.FindAllStringSubmatch(makefile, -1) {
		targets = append(targets, m[1])
	}
	pages := 0
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() {
			if name == "testdata" || name == ".git" || name == "dist" {
				return filepath.SkipDir
			}
			return nil
		} else if filepath.Ext(name) != ".md" && name != "llms.txt" {
			return nil
		}
		pages++
		page, err := text(path)
		for _, name := range dangling(filepath.Dir(path), page, targets, text) {
			t.Errorf("%s: there is no %s", path, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 50 {
		t.Errorf("only %d pages were read", pages)
	}
}

func TestWrongLinksAreFound(t *testing.T) {
	files := map[string]string{"docs/a.md": "# A\n## Which `b`, and [c](d)?\n", "docs/x.go": ""}
	read := func(path string) (string, error) {
		if page, ok := files[path]; ok {
			return page, nil
		}
		return "", os.ErrNotExist
	}
	page := "# Here\n[1](a.md) [2](b.md) [3](a.md#which-b-and-c) [4](a.md#which) [5](x.go#L7) [6](https://h/x.md)" +
		" [7](#here) [8](#there) `make quick` `make slow`"
	want := []string{"b.md", "a.md#which", "#there", "make slow"}
	if got := dangling("docs", page, []string{"quick"}, read); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What is added is named by each page that lists its kind.
func TestPagesNameEveryStoreAndOption(t *testing.T) {
	backends, err := os.ReadDir(filepath.Join(root, "backends"))
	if err != nil {
		t.Fatal(err)
	}
	named := func(page, name string) {
		t.Helper()
		if words, err := text(filepath.Join(root, page)); err != nil {
			t.Error(err)
		} else if !strings.Contains(strings.ToLower(words), strings.ToLower(name)) {
			t.Errorf("%s does not name %s", page, name)
		}
	}
	for _, backend := range backends {
		for _, page := range []string{
			"README.md", "docs/README.md", "docs/backends/README.md", "docs/design.md", "llms.txt", "doc.go",
		} {
			named(page, strings.TrimSuffix(backend.Name(), "lock"))
		}
	}
	options, err := text(filepath.Join(root, "options.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^func ([A-Z]\w*)\(.*\) Option \{`).FindAllStringSubmatch(options, -1) {
		named("doc.go", "["+m[1]+"]")
	}
}
