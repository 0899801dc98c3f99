package judge_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/judge"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/audit"
	"github.com/golocker/locker/transfer"
)

// reusing is a store on which a text can be used again.
type reusing struct {
	*memory.Backend
	last uint64
}

func (b *reusing) Resume(ctx context.Context, req backend.Request, from string) (backend.Grant, error) {
	g, err := b.Backend.Resume(ctx, req, from)
	if err != nil {
		g, err = backend.Grant{Fence: b.last + 1}, nil
	}
	b.last = g.Fence
	return g, err
}

// To a log, an export is a release and a resumption an acquisition, so the rules see a text that has worked twice.
func TestTransfersAreJudged(t *testing.T) {
	for _, again := range []bool{false, true} {
		virtual.Test(t, func(t *testing.T) {
			store := &reusing{Backend: memory.NewBackend()}
			logs := judge.New()
			var texts []*bytes.Buffer
			var all []*audit.Log
			process := func() locker.Locker {
				text := new(bytes.Buffer)
				log := audit.New(text)
				texts, all = append(texts, text), append(all, log)
				c := locker.NewClient(store)
				t.Cleanup(func() { _ = c.Close() })
				return locker.Wrap(c, log.Middleware("store"))
			}
			lease, err := process().TryLock(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				time.Sleep(time.Second)
				text, err := transfer.Export(t.Context(), lease, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				if lease, err = transfer.Resume(t.Context(), process(), text); err != nil {
					t.Fatal(err)
				}
				if again {
					time.Sleep(time.Second)
					if _, err := transfer.Resume(t.Context(), process(), text); err != nil {
						t.Fatal(err)
					}
				}
			}
			_ = lease.Unlock(t.Context())
			for i, log := range all {
				if err := log.Close(); err != nil {
					t.Error(err)
				}
				if err := logs.Read("log", texts[i]); err != nil {
					t.Error(err)
				}
			}
			found := map[judge.Rule]bool{}
			if _, err := logs.Judge(judge.Options{Clocks: true, Slack: time.Second}, func(f judge.Finding) {
				found[f.Rule] = true
				if !again {
					t.Error(f)
				}
			}); err != nil {
				t.Error(err)
			}
			if again && !found[judge.Exclusion] {
				t.Errorf("two held the lock at once, and %v was found", found)
			}
		})
	}
}
