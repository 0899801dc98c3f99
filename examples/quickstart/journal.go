package main

import (
	"bufio"
	"fmt"
	"os"
	"time"
)

// journal is a file to which every holder of the lock, in any process, appends a line when its turn starts and
// another when it ends. If the lock has one holder at a time, these lines alternate.
type journal struct {
	*os.File
	temporary bool
}

// openJournal opens the journal at path, or a temporary one if there is no path.
func openJournal(path string) (*journal, error) {
	if path == "" {
		f, err := os.CreateTemp("", "quickstart-*.journal")
		return &journal{f, true}, err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	return &journal{f, false}, err
}

// Close closes the journal, and removes it if it is temporary.
func (j *journal) Close() error {
	if j.temporary {
		defer os.Remove(j.Name())
	}
	return j.File.Close()
}

// write appends one line, in one system call, so that lines of several processes do not mix.
func (j *journal) write(event string, token uint64, worker int) error {
	_, err := fmt.Fprintf(j, "%s %d %d/%d %s\n", event, token, os.Getpid(), worker, time.Now().Format(time.RFC3339Nano))
	return err
}

// check reads the whole journal and returns the number of turns in it, or the first line that breaks a rule. A turn
// must end before the next one starts, and its token must be greater than all before.
func (j *journal) check() (turns int, err error) {
	f, err := os.Open(j.Name())
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var holder string // empty between two turns
	var last uint64
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		var event, who, when string
		var token uint64
		if _, err := fmt.Sscan(lines.Text(), &event, &token, &who, &when); err != nil {
			return 0, fmt.Errorf("%s:%d: not a line of a journal: %w", j.Name(), n, err)
		}
		switch {
		case event == "start" && holder != "":
			return 0, fmt.Errorf("%s:%d: %s started while %s had the lock", j.Name(), n, who, holder)
		case event == "start" && token <= last:
			return 0, fmt.Errorf("%s:%d: token %d came after %d", j.Name(), n, token, last)
		case event == "start":
			holder, last = who, token
		case who != holder || token != last:
			return 0, fmt.Errorf("%s:%d: %s ended a turn of %q", j.Name(), n, who, holder)
		default:
			holder = ""
			turns++
		}
	}
	if holder != "" {
		return 0, fmt.Errorf("%s: %s never ended its turn", j.Name(), holder)
	}
	return turns, lines.Err()
}
