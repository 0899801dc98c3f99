package elections

import (
	"context"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/memory"
)

// forgetful is a Locker whose holders are not told that their locks are lost.
type forgetful struct {
	locker.Locker
	endless bool // they also believe that their leases last
}

func (f forgetful) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := f.Locker.Lock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return untold{lease, f.endless}, nil
}

type untold struct {
	locker.Lease
	endless bool
}

func (untold) Done() <-chan struct{} { return nil }
func (untold) Err() error            { return nil }

func (u untold) Until() time.Time {
	if u.endless {
		return time.Now().Add(time.Hour)
	}
	return u.Lease.Until()
}

// The judge finds two leaders when the context of OnElected ignores the loss of the lease. The leader can no longer
// reach the store, and another one leads when the TTL ends.
func TestLeadersThatIgnoreTheLossAreFound(t *testing.T) {
	for name, tt := range map[string]struct {
		plant func(locker.Locker) locker.Locker
		wrong bool
	}{
		"the context does not end": {func(l locker.Locker) locker.Locker { return forgetful{l, false} }, true},
		"nor does the lease":       {func(l locker.Locker) locker.Locker { return forgetful{l, true} }, true},
		"nothing is wrong here":    {func(l locker.Locker) locker.Locker { return l }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, store := newJudge(), memory.NewBackend()
			start := func(who int) *local {
				return startLocal(t, who, store, j, func(l locker.Locker, ask asker) runner {
					return newRunner(tt.plant(l), who, false, ask)
				})
			}
			first := start(0)
			now := j.await(t, 0)
			second := start(1)
			j.awaitCampaign(t, 1)
			first.store.dead.Store(true)
			j.await(t, now.term)
			if tt.wrong {
				j.until(t, "the judge finds two leaders", func() bool { return len(j.wrong) > 0 })
				return
			}
			for _, one := range []*local{first, second} {
				one.end()
				one.wait()
			}
			if len(j.wrong) > 0 {
				t.Error(j.wrong)
			}
		})
	}
}

// A term that does not grow is refused, and one that two candidates have is wrong.
func TestTheJudge(t *testing.T) {
	const first, second = 0, 1
	for name, tt := range map[string]struct {
		do    func(j *judge)
		wrong bool
	}{
		"a term of two": {do: func(j *judge) { j.hear(visits, second, 3) }, wrong: true},
		"refused, and valid": {do: func(j *judge) {
			j.hear(visits, second, 4)
			j.hear(isValid, first, 3)
		}, wrong: true},
		"refused, and late": {do: func(j *judge) {
			j.hear(visits, second, 4)
			j.hear(isLate, first, 3)
		}},
	} {
		j := newJudge()
		j.hear(visits, first, 3)
		tt.do(j)
		if found := len(j.wrong) > 0; found != tt.wrong {
			t.Errorf("%s: %q is wrong", name, j.wrong)
		}
		if j.hear(visits, first, 2) {
			t.Errorf("%s: a smaller term was admitted", name)
		}
	}
}
