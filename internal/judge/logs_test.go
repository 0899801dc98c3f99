package judge

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/played"
)

// files writes logs to files and returns their names.
func files(t *testing.T, logs []played.Log) (names []string) {
	t.Helper()
	dir := t.TempDir()
	for _, log := range logs {
		name := filepath.Join(dir, fmt.Sprint(log.Client))
		if err := os.WriteFile(name, []byte(log.Text), 0o600); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// busy returns the logs of clients that use keys one after the other, whose clocks differ by up to the error, in ms.
// Nothing is wrong with them.
func busy(holds, clients, keys int, random *rand.Rand) (lines []string) {
	at := make([]int, keys)
	for n := range holds {
		k := random.IntN(keys)
		from := at[k]
		lines = append(lines, fmt.Sprintf("%d-%d %c lock %d until %d key k%d", from, from+1, 'a'+random.IntN(clients), n+1,
			from+100, k))
		at[k] = from + 120
		who := strings.Fields(lines[len(lines)-1])[1]
		if random.IntN(2) == 0 {
			lines = append(lines, fmt.Sprintf("%d-%d %s unlock", from+20, from+22, who))
			at[k] = from + 40
		}
	}
	return lines
}

// Logs that do not fit into memory are judged in parts, with the same result.
func TestLogsThatDoNotFitIntoMemoryAreJudgedInParts(t *testing.T) {
	lines := append(busy(300, 3, 20, rand.New(rand.NewPCG(1, 1))), "1-2 y lock 1000 until 9000 key k3",
		"3-5 z lock 1001 until 30 key k3")
	names := files(t, played.Play(t, lines...))
	var want []string
	for _, memory := range []int64{1 << 30, 10_000} {
		l, err := Open(names, memory, t.TempDir(), false)
		if err != nil {
			t.Fatal(err)
		}
		if parts := len(l.parts); parts > 1 != (memory < 1<<30) {
			t.Errorf("%d parts", parts)
		}
		var got []string
		holds, err := l.Judge(exact, func(f Finding) { got = append(got, f.String()) })
		slices.Sort(got)
		if want == nil {
			want = got
		}
		if err != nil || holds != 302 || !slices.Equal(got, want) || len(got) == 0 {
			t.Errorf("%d holds, %v, %q want %q", holds, err, got, want)
		}
	}
}

func TestALineThatStandsInSeveralLogsCountsOnce(t *testing.T) {
	names := files(t, played.Play(t, "0-2 a lock 7 until 20", "3-4 a unlock"))
	l, err := Open(append(names, names[0]), 1<<30, t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	if rules, found := judged(t, l, exact); rules != nil || l.Lines != 4 {
		t.Error(found, l.Lines)
	}
}

func TestLocksOfTwoStoresAreNotCompared(t *testing.T) {
	logs := played.Play(t, "0-2 a lock 7 until 20", "3-5 b lock 7 until 30")
	logs[1].Text = strings.ReplaceAll(logs[1].Text, `"store":"s"`, `"store":"another"`)
	for _, one := range []bool{false, true} {
		l, err := Open(files(t, logs), 1<<30, t.TempDir(), one)
		if err != nil {
			t.Fatal(err)
		}
		if rules, _ := judged(t, l, exact); (len(rules) == 2) != one {
			t.Errorf("one store: %v, found: %v", one, rules)
		}
	}
}

// One process hashes its keys, and another one does not.
func TestKeysAreComparedWithHashes(t *testing.T) {
	for _, memory := range []int64{1 << 30, 100} {
		logs := played.Play(t, "0-2 a lock 7 until 20", "3-5 b lock 8 until 30")
		logs[1].Text = strings.ReplaceAll(logs[1].Text, `"key":"k"`, `"key_hash":"8254c329a92850f6d539dd376f4816ee"`)
		l, err := Open(files(t, logs), memory, t.TempDir(), false)
		if err != nil {
			t.Fatal(err)
		}
		rules, found := judged(t, l, exact)
		if !slices.Equal(rules, []string{"ME"}) || !strings.Contains(found[0].Text, `key "k"`) {
			t.Error(found)
		}
	}
}

// A process could not write all of a line, and another one has gone on in the same file.
func TestALineBehindATornOneIsRead(t *testing.T) {
	logs := played.Play(t, "0-2 a lock 7 until 20", "3-5 b lock 8 until 30")
	l := New()
	if err := l.Read("f", strings.NewReader(logs[0].Text+logs[0].Text[:99]+logs[1].Text)); err != nil {
		t.Fatal(err)
	}
	if rules, found := judged(t, l, exact); l.Lines != 6 || l.Unreadable != 1 || !slices.Equal(rules, []string{"ME"}) {
		t.Errorf("%d lines, %d unreadable, %v", l.Lines, l.Unreadable, found)
	}
}

func TestFindingsThatAreLeftOutAreCounted(t *testing.T) {
	var lines []string
	for n := range maxFound + 10 {
		lines = append(lines, fmt.Sprintf("%d-%d a lock %d until %d", 50*n, 50*n+1, 2*n+1, 50*n+40),
			fmt.Sprintf("%d-%d b lock %d until %d", 50*n+2, 50*n+3, 2*n+2, 50*n+45))
	}
	_, found := judged(t, read(t, lines...), exact)
	more := 0
	for _, f := range found {
		more += f.More
	}
	if len(found) != maxFound || more != 10 {
		t.Errorf("%d findings, and %d more", len(found), more)
	}
}

// Logs as they may be found after an incident: lines are missing, the last ones are cut off, others are of a version
// that does not exist yet or no lines at all, copies overlap, and clocks differ. Nothing is wrong with the locks.
func TestDamagedLogsHaveNoFalseFinding(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 2))
		const apart = 10 // ms between any two clocks
		var logs []played.Log
		for _, log := range played.Play(t, busy(100, 10, 3, random)...) {
			log.Text = late(t, log.Text, time.Duration(random.Int64N(apart*int64(time.Millisecond))))
			var kept []string
			for line := range strings.Lines(log.Text) {
				switch random.IntN(12) {
				case 0:
					continue
				case 1:
					line = strings.Replace(line, `"v":1`, `"v":2`, 1)
				case 2:
					kept = append(kept, "garbage "+line[:random.IntN(len(line))]+"\n")
				case 3:
					kept = append(kept, line)
				}
				kept = append(kept, line)
			}
			log.Text = strings.Join(kept, "")
			log.Text = log.Text[:len(log.Text)-min(len(log.Text), random.IntN(200))]
			logs = append(logs, log)
		}
		l := New()
		for _, log := range logs {
			if err := l.Read(fmt.Sprint(log.Client), strings.NewReader(log.Text)); err != nil {
				t.Fatal(err)
			}
		}
		o := Options{Clocks: true, ClockError: apart * time.Millisecond}
		if rules, found := judged(t, l, o); rules != nil {
			t.Fatalf("seed %d: %v", seed, found)
		}
	}
}

// late returns a log whose wall clock is late.
func late(t *testing.T, text string, by time.Duration) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(text) {
		l := parse(t, line)
		l.Asked, l.Answered = l.Asked.Add(-by), l.Answered.Add(-by)
		if !l.Until.IsZero() {
			l.Until = l.Until.Add(-by)
		}
		b.WriteString(format(t, l))
	}
	return b.String()
}

// Whatever is in a file, the judge does not crash.
func FuzzLogs(f *testing.F) {
	for _, c := range played.Cases {
		for _, log := range played.Play(f, c.Lines...) {
			f.Add([]byte(log.Text), int64(1))
		}
	}
	f.Add([]byte(strings.Repeat("x", maxLine+1)+"\n{}\n"), int64(0))
	f.Fuzz(func(t *testing.T, text []byte, clockError int64) {
		l := New()
		if err := l.Read("f", strings.NewReader(string(text))); err != nil {
			t.Fatal(err)
		}
		l.Gaps()
		for _, clocks := range []bool{false, true} {
			o := Options{Clocks: clocks, ClockError: time.Duration(clockError), Prompt: 1}
			if _, err := l.Judge(o, func(Finding) {}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
