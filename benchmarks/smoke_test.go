package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/redistest"
)

// The test binary is also the program of the processes that read and write.
func TestMain(m *testing.M) {
	if plan := os.Getenv(crewEnv); plan != "" {
		crewHere(plan)
		return
	}
	goleak.VerifyTestMain(m, redistest.Lingering()...)
}

// TestSmoke runs everything as briefly as possible. It shows whether the benchmarks still work, and says nothing of
// speed.
func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	o := options{plan: smoke, rtts: []time.Duration{0}, out: dir, markdown: filepath.Join(dir, "results.md")}
	if err := run(t.Context(), o, &out, &out); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report Report
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	// On a busy machine a contestant may get no lock in so short a time.
	starved := false
	ours := map[string]bool{"lost": true, "told": true, "looks": true} // only this library counts these
	for _, result := range report.Results {
		for _, row := range result.Rows {
			if row.Err != "" {
				t.Errorf("%s: %s: %s", result.Name, row.Name, row.Err)
			}
			for _, rate := range []string{"rate", "reads", "writes"} {
				if got, ok := row.Median[rate]; ok && got == 0 {
					starved = true
				}
			}
			if row.Median["overlaps"] > 0 && row.Name[:6] == "locker" {
				t.Errorf("%s: %s: two clients had the lock at once", result.Name, row.Name)
			}
			for _, c := range result.Columns {
				if _, ok := row.Median[c.Figure]; !ok && !strings.HasPrefix(row.Name, "sync.Mutex") && !ours[c.Figure] {
					t.Errorf("%s: %s: no %s", result.Name, row.Name, c.Title)
				}
			}
		}
		if _, err := os.Stat(filepath.Join(dir, result.Name+".svg")); err != nil {
			t.Error(err)
		}
	}
	for _, b := range report.Budgets {
		if !b.Known && !(starved && strings.Contains(b.What, "acquisitions/s")) {
			t.Errorf("not measured: %s", b.What)
		}
	}
	if md, err := os.ReadFile(o.markdown); err != nil || !bytes.Contains(md, []byte("### Budgets")) {
		t.Errorf("no Markdown: %v", err)
	}
	if t.Failed() {
		t.Logf("%s", out.Bytes())
	}
}

// TestNetwork shows that the clients' messages take the time of the round trip.
func TestNetwork(t *testing.T) {
	const rtt = 2 * time.Millisecond
	o := options{plan: smoke, run: "^hand-over$", rtts: []time.Duration{rtt}, out: t.TempDir()}
	var out bytes.Buffer
	if err := run(t.Context(), o, &out, &out); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(o.out, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report Report
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Networks) != 1 || len(report.Results) != 1 || report.Results[0].Name != "hand-over-2ms" {
		t.Fatalf("%s", text)
	}
	for _, row := range report.Results[0].Rows {
		if row.Err != "" || row.Median["handoff_p50_us"] < micros(rtt) {
			t.Errorf("%s: %v µs for a hand-over, %s", row.Name, row.Median["handoff_p50_us"], row.Err)
		}
	}
	t.Log(report.Networks)
}

func TestRatioIsOfTheSameRound(t *testing.T) {
	// A machine that is twice as slow in the second round does not change which contestant is faster.
	r := Result{Rows: []*Row{
		{Name: "a", Rounds: []Figures{{"x": 3}, {"x": 6}, nil}},
		{Name: "b", Rounds: []Figures{{"x": 2}, {"x": 4}, {"x": 100}}},
	}}
	if got, ok := r.ratio("a", "b", "x"); !ok || got != 1.5 {
		t.Errorf("ratio %v, %v", got, ok)
	}
	if _, ok := r.ratio("a", "missing", "x"); ok {
		t.Error("a ratio to a contestant that is missing")
	}
}

func TestBestClientOfALibrary(t *testing.T) {
	r := &Result{Rows: []*Row{
		{Name: "redsync/goredis", Median: Figures{"rate": 3}}, {Name: "redsync/rueidis", Median: Figures{"rate": 9}},
		{Name: "redislock/goredis", Median: Figures{"rate": 20}},
	}}
	if got := r.best("redsync", "rate"); got != "redsync/rueidis" {
		t.Errorf("best: %q", got)
	}
	if got := (*Result)(nil).best("redsync", "rate"); got != "" {
		t.Errorf("best of nothing: %q", got)
	}
}

func TestQueueCheckCountsWhoIsPassedOver(t *testing.T) {
	const asks = -1
	for _, test := range []struct {
		name  string
		steps [][2]int // client, and whether it asks or which acquisition it gets
		want  int
	}{
		{"in turn", [][2]int{{0, asks}, {1, asks}, {0, 1}, {0, asks}, {1, 2}, {1, asks}, {0, 3}, {1, 4}}, 0},
		{"one barges twice past two", [][2]int{
			{0, asks}, {1, asks}, {2, asks}, {0, 1}, {0, asks}, {0, 2}, {0, asks}, {0, 3}, {1, 4}, {2, 5},
		}, 4},
		{"a client that has just come was not passed over", [][2]int{
			{0, asks}, {0, 1}, {1, asks}, {0, asks}, {0, 2}, {1, 3},
		}, 0},
	} {
		q := newQueueCheck(3)
		for _, s := range test.steps {
			if s[1] == asks {
				q.asks(s[0])
			} else {
				q.gets(s[0])
			}
		}
		if q.over != test.want {
			t.Errorf("%s: %d, want %d", test.name, q.over, test.want)
		}
	}
}

func TestVerdict(t *testing.T) {
	for _, test := range []struct {
		b    Budget
		want string
	}{
		{Budget{Limit: 1.1, Got: 1.21, Known: true}, "MISSED by 10 %"},
		{Budget{Limit: 0.8, Got: 1, Known: true, AtLeast: true}, "met by 25 %"},
		{Budget{Limit: 0, Got: 0, Known: true}, "met"},
		{Budget{Limit: 0, Got: 3, Known: true}, "MISSED by 3"},
		{Budget{Limit: 1}, "not measured"},
	} {
		if got := test.b.verdict(); got != test.want {
			t.Errorf("%+v: %s, want %s", test.b, got, test.want)
		}
	}
}
