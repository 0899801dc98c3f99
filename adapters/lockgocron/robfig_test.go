package lockgocron_test

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/once"
)

// everyTick is the recipe for robfig/cron, on which gocron is built.

func everyTick(c *cron.Cron, l locker.Locker, spec, key string, job func(context.Context) error) (err error) {
	var id cron.EntryID // known before c.Start
	id, err = c.AddFunc(spec, func() {
		tick := c.Entry(id).Prev // the time that the schedule names
		if outcome, err := once.Do(context.Background(), l, key, tick, job); err != nil {
			slog.Error("cron", "job", key, "tick", tick, "outcome", outcome, "error", err)
		}
	})
	return err
}

// Three replicas come 200 ms one after the other. Under a plain lock, each of them runs each tick.
func TestRobfig(t *testing.T) {
	const ticks = 100
	for name, want := range map[string]int{"a lock per tick": 1, "a plain lock": 3} {
		t.Run(name, func(t *testing.T) {
			withFleet(t, func(w *fleet) {
				job := func(context.Context) error {
					w.runs(time.Now().Round(time.Minute))
					return nil
				}
				var all []*cron.Cron
				for n := range 3 {
					late := func(j cron.Job) cron.Job {
						return cron.FuncJob(func() {
							time.Sleep(time.Duration(n) * 200 * time.Millisecond)
							j.Run()
						})
					}
					c, l := cron.New(cron.WithLocation(time.UTC), cron.WithChain(late)), w.client()
					err := everyTick(c, l, "* * * * *", "report", job)
					if want == 3 {
						c.Remove(1)
						_, err = c.AddFunc("* * * * *", func() { _ = locker.TryDo(w.Context(), l, "report", job) })
					}
					if err != nil {
						w.Fatal(err)
					}
					c.Start()
					all = append(all, c)
				}
				time.Sleep(ticks*time.Minute + 30*time.Second)
				for _, c := range all {
					<-c.Stop().Done()
				}
				if got := w.times(); !maps.Equal(got, map[int]int{want: ticks}) {
					w.Errorf("of %d ticks, so many ran so often: %v", ticks, got)
				}
			})
		})
	}
}

// The page shows the recipe.
func TestRobfigPage(t *testing.T) {
	source, err := os.ReadFile("robfig_test.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/adapters.md")
	if err != nil {
		t.Fatal(err)
	}
	_, recipe, _ := strings.Cut(string(page), "```go\nfunc everyTick(")
	code, _, found := strings.Cut(recipe, "```")
	if !found || !strings.Contains(string(source), "func everyTick("+code) {
		t.Errorf("robfig_test.go does not have the recipe of the page:\n%s", code)
	}
}
