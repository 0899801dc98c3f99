// Package settings knows which settings of a Redis server weaken which promise of docs/safety.md. [Check] judges the
// answers of one server, and [Clocks] compares the clocks of several. [Begin] looks at servers in the background when
// a Locker is opened, and logs what it finds.
package settings

import (
	"fmt"
	"time"
)

// Level is the severity of a finding.
type Level string

// Warn means that a promise is weakened. Fail means that a promise is broken.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

var severity = map[Level]int{OK: 0, Warn: 1, Fail: 2}

// Worse reports whether l is worse than m.
func (l Level) Worse(m Level) bool { return severity[l] > severity[m] }

// Finding is the result of one check.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Text    string `json:"text"`
	Promise string `json:"promise,omitempty"` // what does not hold because of it
	Fix     string `json:"fix,omitempty"`     // advice, unless Level is OK
}

// The promises that settings can weaken, as docs/safety.md calls them.
const (
	exclusion = "exclusion (E1)"
	tokens    = "tokens without clocks (G1)"
	clockwise = "tokens with clocks (G2)"
	both      = exclusion + " and " + tokens
)

// Use says how the servers are used.
type Use struct {
	Redlock bool          // the servers are the nodes of a quorum
	TTL     time.Duration // the usual TTL of locks; 0: not known
	Guard   time.Duration // the longest TTL of locks; 0: there is no restart guard
	// Replicas is how many replicas have to confirm a lock. With 0, none has to.
	Replicas int
}

// judge collects findings about one server.
type judge struct {
	Snapshot
	use      Use
	findings []Finding
}

// Check judges the settings of one server. It passes over what the server did not tell: see [Snapshot.Unknown].
func Check(s Snapshot, use Use) []Finding {
	j := &judge{Snapshot: s, use: use}
	if len(s.Info) > 0 {
		j.persistence()
		j.eviction()
		j.memory()
		j.replicas()
	}
	j.writableReplica()
	j.slowScripts()
	return j.findings
}

func (j *judge) ok(check, format string, args ...any) {
	j.findings = append(j.findings, Finding{Check: check, Level: OK, Text: fmt.Sprintf(format, args...)})
}

func (j *judge) warn(check, promise, fix, format string, args ...any) {
	j.findings = append(j.findings, Finding{check, Warn, fmt.Sprintf(format, args...), promise, fix})
}

// forgets is warn for a server that may forget locks when it is restarted. With a restart guard, that is in order.
func (j *judge) forgets(check, promise, fix, format string, args ...any) {
	if j.use.Guard > 0 {
		j.ok(check, format+"; the restart guard waits until these have ended, and tokens follow its clock then (G2)",
			args...)
		return
	}
	j.warn(check, promise, fix, format, args...)
}

func (j *judge) fail(check, promise, fix, format string, args ...any) {
	j.findings = append(j.findings, Finding{check, Fail, fmt.Sprintf(format, args...), promise, fix})
}
