// Package golden compares what tests produce with files in the directory testdata of their package. A file has sections
// with titles. "go test -update" writes it anew.
package golden

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the files in testdata anew")

const (
	// patience is how long a section may differ from its file.
	patience = 10 * time.Second
	// stable is for how long a section that is written has not changed.
	stable = 500 * time.Millisecond
	// look is how often a section is looked at.
	look = 20 * time.Millisecond
)

// File is a file of testdata. Only the test's own goroutine may use it.
type File struct {
	tb       testing.TB
	path     string
	why      string
	sections map[string]string
	written  strings.Builder
}

// Open opens the file of a test. why is a sentence for those who have changed what is in it. When the test ends, it
// fails if the file has sections that the test has not produced.
func Open(tb testing.TB, name, why string) *File {
	tb.Helper()
	f := &File{tb: tb, path: filepath.Join("testdata", name), why: why, sections: map[string]string{}}
	if !*update {
		text, err := os.ReadFile(f.path)
		if err != nil {
			tb.Fatalf("%v: go test -update writes it", err)
		}
		for _, section := range strings.Split(string(text), "# ")[1:] {
			title, rest, _ := strings.Cut(section, "\n")
			f.sections[title] = strings.Trim(rest, "\n")
		}
	}
	tb.Cleanup(f.close)
	return f
}

// Section compares the text of a section with the file.
func (f *File) Section(title, text string) {
	f.tb.Helper()
	text = strings.Trim(text, "\n")
	if *update {
		fmt.Fprintf(&f.written, "# %s\n%s\n\n", title, text)
		return
	}
	if want := f.sections[title]; text != want {
		f.tb.Errorf("%s: %q is\n%s\nand was\n%s\n%s If the change is wanted, run the test with -update.", f.path, title,
			text, want, f.why)
	}
	delete(f.sections, title)
}

// Await is Section for something that may take a while until it is as in the file, as what is on several servers.
func (f *File) Await(title string, produce func() string) {
	f.tb.Helper()
	text, since, begin := strings.Trim(produce(), "\n"), time.Now(), time.Now()
	for time.Since(begin) < patience {
		if *update && time.Since(since) > stable || !*update && text == f.sections[title] {
			break
		}
		<-time.After(look)
		if now := strings.Trim(produce(), "\n"); now != text {
			text, since = now, time.Now()
		}
	}
	f.Section(title, text)
}

func (f *File) close() {
	if *update {
		err := os.MkdirAll(filepath.Dir(f.path), 0o755) //nolint:gosec // it is a directory of the repository
		if err == nil {
			text := strings.TrimSuffix(f.written.String(), "\n")
			err = os.WriteFile(f.path, []byte(text), 0o644) //nolint:gosec // and so is this
		}
		if err != nil {
			f.tb.Error(err)
		}
		return
	}
	for title := range f.sections {
		if !f.tb.Failed() { // a test that has failed may have ended early
			f.tb.Errorf("%s: nothing is %q any more. %s", f.path, title, f.why)
		}
	}
}

var (
	histories = regexp.MustCompile(`\b[0-9a-f]{40}\b`) // the IDs of a server of Redis
	tokens    = regexp.MustCompile(`(?:^|[^A-Za-z0-9-])([A-Za-z0-9_-]{27})(?:[^A-Za-z0-9_-]|$)`)
	nonces    = regexp.MustCompile(`\b[A-Z2-7]{26}\b`)
	numbers   = regexp.MustCompile(`\d{10,}`)
)

// Normal replaces what differs from run to run: tokens by their numbers in the order in which they come, and numbers
// that are times or counters by how many digits they have.
func Normal(text string) string {
	text = histories.ReplaceAllString(text, "<40 hex digits>")
	known := map[string]int{}
	for {
		at := tokens.FindStringSubmatchIndex(text)
		if at == nil {
			break
		}
		token := text[at[2]:at[3]]
		if known[token] == 0 {
			known[token] = len(known) + 1
		}
		text = strings.ReplaceAll(text, token, fmt.Sprintf("<token %d>", known[token]))
	}
	text = nonces.ReplaceAllString(text, "<nonce>")
	return numbers.ReplaceAllStringFunc(text, func(n string) string { return fmt.Sprintf("<%d digits>", len(n)) })
}
