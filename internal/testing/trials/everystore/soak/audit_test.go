package soak

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	rules "github.com/golocker/locker/internal/judge"
)

// clockError is by how much the wall clock and the monotonic one of the machine drift apart during a hold, at most.
const clockError = time.Millisecond

// audited returns the URL with an audit log that is of one Client of the process.
func (p plan) audited(client string) string {
	if p.Audit == "" {
		return p.URL
	}
	sign := "?"
	if strings.Contains(p.URL, sign) {
		sign = "&"
	}
	return p.URL + sign + "audit=" + filepath.Join(p.Audit, fmt.Sprintf("%d-%s.jsonl", p.Who, client))
}

// judgeLogs returns what "locker judge" would find in the logs of the processes, but for what is true: some processes
// stood still, and told a loss late, and a store that forgets loses locks before their time.
func (tr *trial) judgeLogs() (found []rules.Finding) {
	tr.Helper()
	if tr.number == 0 { // nobody has done anything
		return nil
	}
	files, err := filepath.Glob(filepath.Join(tr.audit, "*.jsonl"))
	if err != nil || len(files) == 0 {
		tr.Fatalf("no audit logs: %v", err)
	}
	logs, err := rules.Open(files, 256<<20, tr.audit, true)
	if err != nil {
		tr.Fatal(err)
	}
	holds, err := logs.Judge(rules.Options{Clocks: true, ClockError: clockError}, func(f rules.Finding) {
		if f.Rule != rules.Late && (f.Rule != rules.Early || !tr.forgets) {
			found = append(found, f)
		}
	})
	if err != nil {
		tr.Fatal(err)
	}
	gaps, open := logs.Gaps()
	tr.Logf("audit logs: %d lines of %d clients, %d holds, %d gaps, %d logs without an end, %d torn lines, %d findings",
		logs.Lines, logs.Processes(), holds, gaps, open, logs.Unreadable, len(found))
	return found
}
