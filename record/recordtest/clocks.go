package recordtest

import (
	"bytes"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/golocker/locker/record"
)

func clockCanBeWritten(t testing.TB, open opener) {
	known := ""
	for _, c := range clients(t, open, 2) {
		clock, ok := c.s.(record.Clock)
		if !ok {
			return
		}
		id, now := clock.Clock()
		again, later := clock.Clock()
		switch {
		case id != again || known != "" && id != "" && id != known:
			t.Errorf("Clock: expected one id, seen %q, %q and %q", known, id, again)
		case id != "" && (len(id) > 64 || !utf8.ValidString(id)):
			t.Errorf("Clock: expected an id of at most 64 bytes of UTF-8, seen %q", id)
		case id != "" && (now <= 0 || later < now):
			t.Errorf("Clock: expected times above 0 that do not go back, seen %v and then %v", now, later)
		}
		known = id
	}
}

// dated is a Store that tells its time, and nothing else.
type dated struct {
	record.Store
	clock record.ServerClock
}

// ServerClock implements record.ServerClock.
func (d dated) ServerClock() (resolution, skew time.Duration) { return d.clock.ServerClock() }

// answersTellTheTime looks at what a Backend writes: the end of a record, if the answer to the write has told a time
// that fits to that of an earlier answer.
func answersTellTheTime(t testing.TB, open opener) {
	for i, c := range clients(t, open, 2) {
		clock, ok := c.s.(record.ServerClock)
		if !ok {
			return
		}
		resolution, _ := clock.ServerClock()
		if resolution <= 0 {
			return
		}
		l := record.New(dated{c.s, clock}, record.ClockSkew(5*time.Second))
		lease, err := l.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatalf("TryLock of client %d: expected no error, seen %v", i, err)
		}
		for _, when := range []string{"Create or Replace of a free lock", "Replace of a lock that is held"} {
			if text, _ := c.get("k"); !bytes.Contains(text, []byte(`"utc"`)) {
				t.Errorf("after %s: expected a record that says when it ends, seen %s", when, text)
			}
			if err := lease.Extend(t.Context()); err != nil {
				t.Errorf("Extend: expected no error, seen %v", err)
			}
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock: expected no error, seen %v", err)
		}
		_ = l.Close()
	}
}
