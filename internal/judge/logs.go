// Package judge reads audit logs, which package middleware/audit writes, and finds where locks have broken their
// promises. The command "locker judge" and the trials of this repository use it. Each rule takes one pass over what is
// known of a key.
package judge

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker/middleware/audit"
)

// maxLine is the length of the longest line that is read. A key has some hundred bytes, and an error some thousand.
const maxLine = 1 << 20

// Entry is a line of a log, and where it stands.
type Entry struct {
	audit.Line
	File   string `json:"file"`
	Number int    `json:"line"`
}

// id returns the hash of the key, which some processes write instead of the key.
func (e *Entry) id() string {
	if e.KeyHash != "" {
		return e.KeyHash
	}
	sum := sha256.Sum256([]byte(e.Key))
	return hex.EncodeToString(sum[:16])
}

// Logs are the logs that are judged together.
type Logs struct {
	Lines      int // that were read, each once
	Unreadable int // lines that are none of a log, or were cut off
	Newer      int // lines of a version that is not known

	oneStore  bool
	processes map[string]*process
	stores    map[string]bool
	files     []string
	parts     []part
}

// part has the lines of some keys: in a file if there are several parts.
type part struct {
	entries []Entry
	file    *os.File
	out     *bufio.Writer
}

// New returns Logs without lines, which are kept in memory.
func New() *Logs {
	return &Logs{processes: map[string]*process{}, stores: map[string]bool{}, parts: make([]part, 1)}
}

// Open reads logs. If they have more bytes than memory, it writes their lines to files in dir, each with the lines of
// some keys, so that those of one key have to fit into memory. With oneStore, all stores are the same.
func Open(files []string, memory int64, dir string, oneStore bool) (*Logs, error) {
	l, size := New(), int64(0)
	l.oneStore = oneStore
	for _, name := range files {
		info, err := os.Stat(name)
		switch {
		case err != nil:
			return nil, err
		case !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is not a regular file", name)
		}
		size += info.Size()
	}
	if n := size / memory; n > 0 {
		l.parts = make([]part, min(n+1, 256))
	}
	for i := range l.parts {
		if len(l.parts) == 1 {
			break
		}
		file, err := os.Create(filepath.Join(dir, fmt.Sprint("part", i)))
		if err != nil {
			return nil, err
		}
		l.parts[i] = part{file: file, out: bufio.NewWriter(file)}
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err == nil {
			err = l.Read(name, f)
			_ = f.Close()
		}
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Read reads a log. A line that stands in several logs, as in copies of them, counts once.
func (l *Logs) Read(name string, r io.Reader) error {
	l.files = append(l.files, name)
	in := bufio.NewReaderSize(r, maxLine)
	for number := 1; ; number++ {
		text, err := in.ReadSlice('\n')
		for long := err; errors.Is(long, bufio.ErrBufferFull); {
			text = nil
			_, long = in.ReadSlice('\n')
			err = long
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: %w", name, err)
		}
		if text = bytes.TrimSpace(text); len(text) > 0 || err == nil && text == nil {
			if fault := l.take(text, len(l.files)-1, number); fault != nil {
				return fault
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
	}
}

// take takes a line.
func (l *Logs) take(text []byte, file, number int) error {
	e := Entry{File: l.files[file], Number: number}
	switch legible := json.Unmarshal(text, &e.Line) == nil; {
	case legible && e.Version > audit.Version:
		l.Newer++
		return nil
	case !legible, e.Version < 1, e.Process == "", e.Seq == 0, e.Event == "", e.Asked.IsZero():
		l.Unreadable++
		if next := bytes.LastIndex(text, []byte(`{"v":`)); next > 0 { // a line of another process follows a torn one
			return l.take(text[next:], file, number)
		}
		return nil
	}
	p := l.processes[e.Process]
	if p == nil {
		p = &process{}
		l.processes[e.Process] = p
	}
	if !p.add(e.Seq) {
		return nil
	}
	l.Lines++
	switch e.Event {
	case audit.Start:
		p.Label = e.Label
		return nil
	case audit.Close:
		p.closed, p.end = e.Seq, e.Line
		return nil
	case audit.Dropped:
		return nil
	}
	l.stores[e.Store] = true
	sum := fnv.New32a()
	_, _ = io.WriteString(sum, e.id())
	part := &l.parts[int(sum.Sum32()%uint32(len(l.parts)))]
	if part.out == nil {
		part.entries = append(part.entries, e)
		return nil
	}
	_, err := fmt.Fprintf(part.out, "%d %d %s\n", file, number, text)
	return err
}

// load returns the lines of a part.
func (l *Logs) load(p part) ([]Entry, error) {
	if p.out == nil {
		return p.entries, nil
	}
	if err := p.out.Flush(); err != nil {
		return nil, err
	}
	if _, err := p.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	defer func() { _ = p.file.Close() }()
	var entries []Entry
	in := bufio.NewReader(p.file)
	for {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		var e Entry
		var file int
		if err == nil {
			_, err = fmt.Sscan(string(text[:min(len(text), 40)]), &file, &e.Number)
		}
		if err == nil {
			e.File = l.files[file]
			err = json.Unmarshal(text[bytes.IndexByte(text, '{'):], &e.Line)
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
}

// Stores returns the names of the stores.
func (l *Logs) Stores() []string {
	return slices.Sorted(maps.Keys(l.stores))
}

// process is what is known of the log of a process.
type process struct {
	Label  string // host and process ID; empty if the beginning of the log is missing
	closed uint64 // the number of the last line, which is end; 0: it is missing
	end    audit.Line
	ranges []span // of the numbers of the lines that are there, in ascending order, none next to another
}

type span struct{ from, to uint64 }

// add records that a line is there. It reports whether it was not before.
func (p *process) add(seq uint64) bool {
	i, _ := slices.BinarySearchFunc(p.ranges, seq, func(s span, seq uint64) int { return cmp.Compare(s.to, seq) })
	if i < len(p.ranges) && p.ranges[i].from <= seq {
		return false
	}
	after, before := i < len(p.ranges) && p.ranges[i].from == seq+1, i > 0 && p.ranges[i-1].to+1 == seq
	switch {
	case before && after:
		p.ranges[i-1].to = p.ranges[i].to
		p.ranges = slices.Delete(p.ranges, i, i+1)
	case before:
		p.ranges[i-1].to = seq
	case after:
		p.ranges[i].from = seq
	default:
		p.ranges = slices.Insert(p.ranges, i, span{seq, seq})
	}
	return true
}

// whole reports whether no line is missing from one to the other.
func (p *process) whole(from, to uint64) bool {
	return slices.ContainsFunc(p.ranges, func(s span) bool { return s.from <= from && to <= s.to })
}

// Gaps returns how many times lines are missing, and how many logs have no end.
func (l *Logs) Gaps() (missing, open int) {
	for _, p := range l.processes {
		missing += max(0, len(p.ranges)-1)
		if p.ranges[0].from > 1 {
			missing++
		}
		if p.closed == 0 {
			open++
		}
	}
	return missing, open
}

// Processes returns how many processes have lines.
func (l *Logs) Processes() int { return len(l.processes) }

// Who names a process for people.
func (l *Logs) Who(e Entry) string {
	p := l.processes[e.Process]
	if p == nil || p.Label == "" {
		return "process " + e.Process
	}
	return strings.TrimSpace(p.Label) + " (" + e.Process + ")"
}

// Holds returns the holds of each key in memory, by the wall clock since a time, and the keys.
func (l *Logs) Holds(since time.Time) (keys []string, byKey map[string][]*Hold) {
	entries := map[string][]Entry{}
	for _, e := range inOrder(l.parts[0].entries) {
		entries[e.Key] = append(entries[e.Key], e)
	}
	byKey = map[string][]*Hold{}
	for key, of := range entries {
		byKey[key] = l.holds(of, wall(since), 0)
	}
	return slices.Sorted(maps.Keys(entries)), byKey
}

// Entries returns the lines in memory, but those about logs.
func (l *Logs) Entries() []Entry { return l.parts[0].entries }

// inOrder sorts lines by processes and numbers.
func inOrder(entries []Entry) []Entry {
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Process, b.Process), cmp.Compare(a.Seq, b.Seq))
	})
	return entries
}
