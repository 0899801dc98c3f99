package judge

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/played"
	"github.com/golocker/locker/middleware/audit"
)

// read reads logs that were played.
func read(t testing.TB, lines ...string) *Logs {
	t.Helper()
	l := New()
	for _, log := range played.Play(t, lines...) {
		if err := l.Read(fmt.Sprint(log.Client), strings.NewReader(log.Text)); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func judged(t testing.TB, l *Logs, o Options) (rules []string, found []Finding) {
	t.Helper()
	if _, err := l.Judge(o, func(f Finding) { rules, found = append(rules, f.Rule), append(found, f) }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(rules)
	return rules, found
}

// What breaks no promise of a lock may be the cause of an incident.
func TestRemarks(t *testing.T) {
	for name, c := range map[string]played.Case{
		"a holder that does not stop": {Lines: []string{"0-2 a lock 7 until 20", "20 a done", "22-23 a unlock notheld"},
			Rules: []string{WentOn}},
		"a holder that stops":       {Lines: []string{"0-2 a lock 7 until 20", "20 a done", "20-21 a unlock notheld"}},
		"a holder that is not lost": {Lines: []string{"0-2 a lock 7 until 20", "10-11 a unlock"}},
		"two stores": {Lines: []string{"0-2 a lock 7 until 20", "3-5 b lock 8 until 30 store r",
			"3-5 c lock 8 until 30 store r key j"}, Rules: []string{Stores}},
		"two stores of two keys": {Lines: []string{"0-2 a lock 7 until 20", "3-5 b lock 8 until 30 store r key j"}},
	} {
		o, remarks := exact, []string(nil)
		o.Slack = time.Millisecond
		o.Remark = func(f Finding) { remarks = append(remarks, f.Rule) }
		if rules, found := judged(t, read(t, c.Lines...), o); len(rules) > 0 || !slices.Equal(remarks, c.Rules) {
			t.Errorf("%s: %q, %v", name, remarks, found)
		}
	}
}

var exact = Options{Clocks: true, Prompt: time.Millisecond}

// Logs with one fault break the rule that forbids it.
func TestRulesFindWhatIsWrong(t *testing.T) {
	more := map[string]played.Case{
		"a writer beside a reader": {Lines: []string{"0-2 a lock 7 until 20 kind shared",
			"3-5 b lock 8 until 30 kind exclusive"}, Rules: []string{"RW"}},
		"readers": {Lines: []string{"0-2 a lock 7 until 20 kind shared", "3-5 b lock 7 until 30 kind shared",
			"3-6 c lock 6 until 30 kind upgradeable"}},
		"two that may upgrade": {Lines: []string{"0-2 a lock 7 until 20 kind upgradeable",
			"3-5 b lock 8 until 30 kind upgradeable"}, Rules: []string{"ME"}},
		"an upgrade": {Lines: []string{"0-2 a lock 7 until 20 kind upgradeable",
			"3-5 a lock 8 until 30 kind exclusive upgrades a7", "6-7 a extend until 40 of a7", "8-9 a unlock of a7"}},
		"an upgrade beside a reader": {Lines: []string{"0-2 a lock 7 until 20 kind upgradeable",
			"0-3 b lock 6 until 30 kind shared", "3-5 a lock 8 until 30 kind exclusive upgrades a7"}, Rules: []string{"RW"}},
		"an upgrade of another's lock": {Lines: []string{"0-2 a lock 7 until 20 kind upgradeable",
			"3-5 a lock 8 until 30 kind exclusive", "8-9 a unlock of a7"}, Rules: []string{"RW", "VER"}},
		"a downgrade": {Lines: []string{"0-2 a lock 7 until 20 kind exclusive", "5-6 a share until 30",
			"5-7 b lock 8 until 30 kind shared"}},
		"a reader before a downgrade": {Lines: []string{"0-2 a lock 7 until 20 kind exclusive", "5-6 a share until 30",
			"3-4 b lock 8 until 30 kind shared"}, Rules: []string{"RW", "VER"}},
		"a downgraded lock beside a reader": {Lines: []string{"0-2 a lock 7 until 20 kind exclusive",
			"5-6 a share until 30", "6-8 b lock 8 until 60 kind shared", "20-21 a extend until 50", "30-31 a unlock"}},
		"a writer beside a downgraded lock": {Lines: []string{"0-2 a lock 7 until 20 kind exclusive",
			"5-6 a share until 30", "7-8 b lock 8 until 30 kind exclusive"}, Rules: []string{"RW"}},
		"a downgrade that was not answered": {Lines: []string{"0-2 a lock 7 until 20 kind exclusive",
			"5-6 a share unknown until 30", "6-8 b lock 8 until 10 kind shared", "9-10 a extend until 50",
			"11-12 b lock 9 until 30 kind exclusive"}, Rules: []string{"RW"}},
		"a downgrade that is answered after a renewal": {Lines: []string{"0-2 a lock 7 until 20 kind exclusive",
			"7-8 a share until 30", "5-9 a share until 30", "5-6 b lock 8 until 30 kind shared"}},
		"a reader before a downgrade that is answered after a renewal": {Lines: []string{
			"0-2 a lock 7 until 20 kind exclusive", "7-8 a share until 30", "5-9 a share until 30",
			"3-4 b lock 8 until 30 kind shared"}, Rules: []string{"RW"}},
		"readers of one place": {Lines: []string{"0-2 a lock 7 until 20 kind shared grant g",
			"1-3 a lock 7 until 20 kind shared grant g", "4-5 a unlock", "6-8 b lock 8 until 30 kind exclusive"},
			Rules: []string{"RW"}},
		"readers of one place that have left": {Lines: []string{"0-2 a lock 7 until 20 kind shared grant g",
			"1-3 a lock 7 until 20 kind shared grant g", "4-5 a unlock", "5-6 a unlock", "6-8 b lock 8 until 30"}},
		"a reader with the token of a writer": {Lines: []string{"0-2 a lock 7 until 20 kind exclusive", "3-4 a unlock",
			"5-6 b lock 7 until 30 kind shared"}, Rules: []string{"UNIQ"}},
		"permits": {Lines: []string{"0-2 a lock 7 until 20 kind permit limit 2 slot 0",
			"3-5 b lock 8 until 30 kind permit limit 2 slot 1", "5-21 c lock 9 until 40 kind permit limit 2 slot 0"}},
		"more permits than there are": {Lines: []string{"0-2 a lock 7 until 20 kind permit limit 2 slot 0",
			"3-5 b lock 8 until 30 kind permit limit 2 slot 1", "5-11 c lock 9 until 40 kind permit limit 2 slot 2"},
			Rules: []string{"PERMITS"}},
		"more than there are, two of one process": {Lines: []string{"0-2 a lock 7 until 20 kind permit limit 2 slot 0",
			"3-5 a lock 8 until 30 kind permit limit 2 slot 1", "5-11 c lock 9 until 40 kind permit limit 2 slot 2"},
			Rules: []string{"PERMITS"}},
		"a permit twice": {Lines: []string{"0-2 a lock 7 until 20 kind permit limit 2 slot 0",
			"3-5 b lock 8 until 30 kind permit limit 2 slot 0"}, Rules: []string{"ME"}},
		"a grant in two processes": {Lines: []string{"0-2 a lock 7 until 20 grant g", "3-4 a unlock",
			"5-6 b lock 8 until 30 grant g"}, Rules: []string{"GRANT"}},
		"a grant that is handed over": {Lines: []string{"0-2 a lock 7 until 20 grant g tokens 3", "3-4 a unlock",
			"1-5 a lock 8 until 30 grant g tokens 3 from 7", "6-7 a unlock", "6-8 b lock 10 until 30"}},
		"a grant that two have": {Lines: []string{"0-2 a lock 7 until 20 grant g tokens 3",
			"1-5 a lock 8 until 30 grant g tokens 3 from 7"}, Rules: []string{"GRANT"}},
		"a token of another's block": {Lines: []string{"0-2 a lock 7 until 20 tokens 3", "3-4 a unlock",
			"5-6 b lock 9 until 30"}, Rules: []string{"UNIQ"}},
		"released after it was lost": {Lines: []string{"0-2 a lock 7 until 20", "20 a done taken", "21-22 a unlock"},
			Rules: []string{"AFTER"}},
		"taken by force": {Lines: []string{"0-2 a lock 7 until 20", "3-4 o force 7", "3-5 b lock 8 until 30",
			"6 a done taken", "7-8 b unlock"}},
		"perhaps taken by force": {Lines: []string{"0-2 a lock 7 until 20", "3-4 o force 0 unknown",
			"3-5 b lock 8 until 30", "6 a done taken", "7-8 b unlock"}},
		"perhaps taken by force at another time": {Lines: []string{"0-2 a lock 7 until 20", "3-5 b lock 8 until 30",
			"40-41 o force 0 unknown"}, Rules: []string{"ME"}},
		"an extension that has no line": {Lines: []string{"0-2 a lock 7 until 20", "35 a done until 35"}},
		"a machine that slept": {Lines: []string{"0-2 a lock 7 until 20", "3 a sleeps 1000",
			"4-5 a unlock notheld"}},
		"a machine that slept and was told by the store": {Lines: []string{"0-2 a lock 7 until 20", "3 a sleeps 1000",
			"1003-1004 b lock 8 until 1100", "5 a done taken"}, Rules: []string{"DONE"}},
		"a machine that slept, and two of its threads": {Lines: []string{"0-2 a lock 7 until 20", "3 a sleeps 1000",
			"4-5 a lock 8 until 60"}},
	}
	for name, tt := range played.Cases {
		more[name] = tt
	}
	for name, tt := range more {
		t.Run(name, func(t *testing.T) {
			if rules, found := judged(t, read(t, tt.Lines...), exact); !slices.Equal(rules, tt.Rules) {
				t.Errorf("broken: %v, want %v", found, tt.Rules)
			}
		})
	}
}

// Without clocks, what is wrong within a process is found, and what no clock is needed for.
func TestProcessesAreNotComparedWithoutTheErrorOfTheirClocks(t *testing.T) {
	for name, tt := range map[string]struct {
		lines []string
		error time.Duration // of clocks, in ms; negative: not known
		rules []string
	}{
		"two processes":                {[]string{"0-2 a lock 7 until 20", "3-5 b lock 8 until 30"}, -1, nil},
		"and their clocks":             {[]string{"0-2 a lock 7 until 20", "3-5 b lock 8 until 30"}, 14, []string{"ME"}},
		"which may differ by that":     {[]string{"0-2 a lock 7 until 20", "3-5 b lock 8 until 30"}, 15, nil},
		"a short hold within a long":   {[]string{"0-2 a lock 7 until 90", "30-31 b lock 8 until 33"}, 2, nil},
		"a token that falls":           {[]string{"0-2 a lock 7 until 3", "8-9 b lock 6 until 30"}, -1, nil},
		"by clocks":                    {[]string{"0-2 a lock 7 until 3", "8-9 b lock 6 until 30"}, 5, []string{"RT"}},
		"by clocks that are no better": {[]string{"0-2 a lock 7 until 3", "8-9 b lock 6 until 30"}, 6, nil},
		"a token twice":                {[]string{"0-2 a lock 7 until 3", "8-9 b lock 7 until 30"}, -1, []string{"UNIQ"}},
		"within a process": {[]string{"0-2 a lock 7 until 20", "3-4 a unlock", "5-6 a lock 6 until 30"}, -1,
			[]string{"HO", "RT"}},
		"a loss that is told late":      {[]string{"0-2 a lock 7 until 20", "27 a done"}, -1, nil},
		"later than the error of clock": {[]string{"0-2 a lock 7 until 20", "27 a done"}, 6, []string{"DONE"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Clocks: tt.error >= 0, ClockError: tt.error * time.Millisecond}
			if rules, found := judged(t, read(t, tt.lines...), o); !slices.Equal(rules, tt.rules) {
				t.Errorf("broken: %v, want %v", found, tt.rules)
			}
		})
	}
}

// Where lines are missing, a holder may have unlocked.
func TestGapsAreNotJudged(t *testing.T) {
	for name, tt := range map[string]struct {
		lines []string
		rules []string
	}{
		"nothing is missing":     {[]string{"0-2 a lock 7 until 20", "5-6 b lock 8 until 30"}, []string{"ME"}},
		"a line is missing":      {[]string{"0-2 a lock 7 until 20", "3 a missing", "5-6 b lock 8 until 30"}, nil},
		"a line was dropped":     {[]string{"0-2 a lock 7 until 20", "3 a drop", "5-6 b lock 8 until 30"}, nil},
		"the end of the log":     {[]string{"0-2 a lock 7 until 20", "3 a killed", "5-6 b lock 8 until 30"}, nil},
		"before the acquisition": {[]string{"0 a missing", "0-2 a lock 7 until 20", "5-6 b lock 8 until 30"}, []string{"ME"}},
		"after the release": {[]string{"0-2 a lock 7 until 20", "9-10 a unlock unknown", "11 a killed",
			"5-6 b lock 8 until 30"}, []string{"ME"}},
		"before the release": {[]string{"0-2 a lock 7 until 20", "3 a missing", "9-10 a unlock unknown",
			"5-6 b lock 8 until 30"}, nil},
		"before a downgrade": {[]string{"0-2 a lock 7 until 20 kind exclusive", "3 a missing",
			"3-4 b lock 8 until 9 kind shared", "5-6 a share until 30"}, nil},
		"before an extension": {[]string{"0-2 a lock 7 until 20", "3 a missing", "9-10 a extend until 90",
			"5-6 b lock 8 until 30"}, []string{"ME", "VER"}},
		"after an extension": {[]string{"0-2 a lock 7 until 20", "9-10 a extend until 90", "12 a killed",
			"15-16 b lock 8 until 30"}, nil},
		"the log was closed before": {[]string{"0-2 a lock 7 until 20", "3 a closes", "5-6 b lock 8 until 30"}, nil},
		"the log was closed after": {[]string{"0-2 a lock 7 until 20", "7 a closes", "5-6 b lock 8 until 30"},
			[]string{"ME"}},
		"a token is in a gap": {[]string{"0-2 a lock 7 until 20", "3 a killed", "5-6 b lock 7 until 30"},
			[]string{"UNIQ"}},
		"an extension before a loss": {[]string{"0-2 a lock 7 until 20", "3 a missing", "20 a done"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if rules, found := judged(t, read(t, tt.lines...), exact); !slices.Equal(rules, tt.rules) {
				t.Errorf("broken: %v, want %v", found, tt.rules)
			}
		})
	}
}

func parse(t *testing.T, text string) (l audit.Line) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		t.Fatal(err)
	}
	return l
}

func format(t *testing.T, l audit.Line) string {
	t.Helper()
	text, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}
