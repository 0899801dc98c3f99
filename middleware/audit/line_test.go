package audit

import (
	"encoding/json"
	"io"
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/virtual"
)

// WriteForTest writes n lines.
func WriteForTest(l *Log, n int) {
	now := time.Now()
	for range n {
		line := sample(now)
		l.add(&line, now)
	}
}

func sample(now time.Time) Line {
	return Line{
		Event: Acquired, Answered: now, Store: "redis://redis.internal:6379/0?prefix=lock%3A", Key: "orders:4711",
		Kind: Plain, Outcome: OK, Grant: "0123456789abcdef", Fence: 1795280341838278, First: 1795280341838278, Tokens: 1,
		Label: "web-7:4211", Until: now.Add(30 * time.Second),
	}
}

// AttrsForTest returns the fields of the same line.
func AttrsForTest(now time.Time) []slog.Attr {
	l := sample(now)
	return []slog.Attr{
		slog.Int("v", Version), slog.String("process", "0123456789abcdef"), slog.Uint64("seq", 1),
		slog.Time("asked", now), slog.Time("answered", now), slog.Int64("asked_mono", 123456789),
		slog.Int64("answered_mono", 123456789), slog.String("store", l.Store), slog.String("key", l.Key),
		slog.String("kind", string(l.Kind)), slog.String("outcome", string(l.Outcome)), slog.String("grant", l.Grant),
		slog.Uint64("fence", l.Fence), slog.Uint64("first", l.First), slog.Int("tokens", l.Tokens),
		slog.String("label", l.Label), slog.Time("until", l.Until), slog.Int64("until_mono", 30123456789),
	}
}

// stuck is a file of which no call returns for a while.
type stuck struct{}

func (stuck) Write([]byte) (int, error) {
	time.Sleep(time.Hour)
	return 0, io.ErrClosedPipe
}

func (stuck) Close() error {
	time.Sleep(time.Hour)
	return nil
}

func TestCloseDoesNotWaitForAFileWhoseCloseHangs(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		log, began := newLog(stuck{}, nil), time.Now()
		_ = log.Close()
		if took := time.Since(began); took > time.Second {
			t.Errorf("Close took %v", took)
		}
		time.Sleep(3 * time.Hour)
	})
}

var begin = time.Date(2026, 11, 30, 3, 4, 5, 678901234, time.UTC)

// The format of the lines is a promise: what reads them may be older than what has written them, or younger.
func TestTheFormatOfLines(t *testing.T) {
	full := Line{
		Version: 1, Process: "0123456789abcdef", Seq: 2, Event: Acquired, Asked: begin,
		Answered: begin.Add(time.Millisecond), AskedMono: 5, AnsweredMono: 1000005, DeadlineMono: 7,
		Store: "redis://h:6379/0?prefix=lock%3A", Key: "k", KeyHash: "h", Kind: Permit, Alone: true, Try: true, Auto: true,
		Outcome: OK, Reason: "expired", Err: "e", Grant: "g", From: "u", Fence: 9, First: 8, Tokens: 3, Limit: 4,
		Slots: []int{0, 2}, Label: "web-7:1", Until: begin.Add(time.Second), UntilMono: 1000000005, Missing: 6,
	}
	const want = `{"v":1,"process":"0123456789abcdef","seq":2,"event":"acquired",` +
		`"asked":"2026-11-30T03:04:05.678901234Z","answered":"2026-11-30T03:04:05.679901234Z",` +
		`"asked_mono":5,"answered_mono":1000005,"deadline_mono":7,` +
		`"store":"redis://h:6379/0?prefix=lock%3A","key":"k","key_hash":"h","kind":"permit","alone":true,` +
		`"try":true,"auto":true,` +
		`"outcome":"ok","reason":"expired","err":"e","grant":"g","from":"u","fence":9,"first":8,` +
		`"tokens":3,"limit":4,"slots":[0,2],"label":"web-7:1",` +
		`"until":"2026-11-30T03:04:06.678901234Z","until_mono":1000000005,"missing":6}`
	if got, _ := json.Marshal(full); string(got) != want {
		t.Errorf("a line is\n%s\nwant\n%s", got, want)
	}
	for i := range reflect.TypeFor[Line]().NumField() {
		if reflect.ValueOf(full).Field(i).IsZero() {
			t.Errorf("the test has no %s", reflect.TypeFor[Line]().Field(i).Name)
		}
	}
	events := []Event{Acquired, HandedOver, Refused, Extended, Verified, Released, Lost, Forced, Start, Dropped, Close}
	words, _ := json.Marshal([]any{events, []Outcome{OK, Held, NotHeld, Ended, Unlocked, Unknown},
		[]Kind{Plain, Permit, Shared, Upgradeable, Exclusive, Tick, Term}})
	const all = `[["acquired","handed over","refused","extended","verified","released","lost","taken by force","start",` +
		`"dropped","close"],["ok","held","not held","lost","unlocked","unknown"],` +
		`["lock","permit","shared","upgradeable","exclusive","tick","term"]]`
	if string(words) != all {
		t.Errorf("the words are %s, want %s", words, all)
	}
}
