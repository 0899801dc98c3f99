package record_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/recordstore"
	ticks "github.com/golocker/locker/once"
	"github.com/golocker/locker/record"
)

// ticksRecord is the record of the ticks of the job k.
const ticksRecord = "k=t"

// nextTick is the next whole minute.
func nextTick() time.Time { return time.Now().Truncate(time.Minute).Add(time.Minute) }

func nothing(context.Context) error { return nil }

// wantTick calls Do for a tick of k, with a window of a minute.
func wantTick(t *testing.T, l locker.Locker, tick time.Time, want ticks.Outcome) {
	t.Helper()
	if got, err := ticks.Do(t.Context(), l, "k", tick, nothing); got != want || err != nil {
		t.Errorf("%v: %s, %v; want %s", tick, got, err, want)
	}
}

// However many ticks a job has at full minutes, there is one record, and its text is less than 1 KiB. Each tick costs
// the instance that runs it a read and a write, and a read when the job has ended.
func TestTicksHaveOneRecord(t *testing.T) {
	n := 500_000
	if testing.Short() {
		n = 5_000
	}
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		names, longest := map[string]bool{}, 0
		s.Inject(func(r recordstore.Request) recordstore.Fault {
			names[r.Name], longest = true, max(longest, len(r.Text))
			return recordstore.Fault{}
		})
		l := client(t, s)
		tick := nextTick()
		for range n {
			time.Sleep(time.Until(tick))
			wantTick(t, l, tick, ticks.Ran)
			tick = tick.Add(time.Minute)
		}
		if len(names) != 1 || !names[ticksRecord] || longest >= 1024 {
			t.Errorf("the records %v, and texts of up to %d bytes", names, longest)
		}
		if r := s.Requests(); r["get"] != 2*n || r["create"] != 1 || r["replace"] != n-1 {
			t.Errorf("%d ticks: %v", n, r)
		}
		t.Logf("%d ticks: one record of %d bytes at most", n, longest)
	})
}

// claims claims a tick, in a process that is gone when it has no answer.
func claims(t *testing.T, l locker.Locker, tick time.Time) (locker.Lease, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
	defer cancel()
	return ticks.Claim(ctx, l, "k", tick)
}

// What becomes of a claim whose write has an outcome that is not known: it is undone, so that another instance runs the
// tick, or found.
func TestTickInDoubt(t *testing.T) {
	for name, c := range map[string]struct {
		fault recordstore.Fault
		found bool
	}{
		"the answer is lost":           {recordstore.Fault{Lost: true}, false},
		"it is late":                   {recordstore.Fault{Before: 2 * time.Second}, false},
		"it is executed twice":         {recordstore.Fault{Twice: true}, true},
		"it is refused for no reason":  {recordstore.Fault{Doubted: true}, true},
		"the answer is late":           {recordstore.Fault{After: 2 * time.Second}, false},
		"the store is down for a call": {recordstore.Fault{Refused: true}, false},
	} {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", ticks before: ", before), func(t *testing.T) {
				inBubble(t, func(t *testing.T, s *recordstore.Store) {
					a, b, tick := client(t, s), client(t, s), nextTick()
					time.Sleep(time.Until(tick))
					if before {
						wantTick(t, b, tick.Add(time.Millisecond), ticks.Ran)
					}
					first := true
					s.Inject(func(r recordstore.Request) (f recordstore.Fault) {
						if r.Op != "get" && first {
							first, f = false, c.fault
						}
						return f
					})
					_, err := claims(t, a, tick)
					if (err == nil) != c.found {
						t.Fatal(err)
					}
					time.Sleep(5 * time.Second)
					if c.found {
						wantTick(t, b, tick, ticks.Elsewhere)
					} else {
						wantTick(t, b, tick, ticks.Ran)
						wantTick(t, a, tick, ticks.Elsewhere)
					}
					if before {
						wantTick(t, a, tick.Add(time.Millisecond), ticks.Elsewhere)
					}
				})
			})
		}
	}
}

// A long job keeps its lease while its record shows the claim, and when nobody can claim the tick any more. It loses it
// if an operator takes the claim away, and the tick is then run again.
func TestLeaseOfATick(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		l, tick := client(t, s), nextTick()
		time.Sleep(time.Until(tick))
		lease, err := ticks.Claim(t.Context(), l, "k", tick)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(locker.Verify(t.Context(), lease), lease.Extend(t.Context())); err != nil {
			t.Error(err)
		}
		time.Sleep(70 * time.Second)
		up := s.Down()
		time.Sleep(time.Hour)
		if err := lease.Err(); err != nil {
			t.Errorf("the job goes on: %v", err)
		}
		up()
		tick = nextTick()
		time.Sleep(time.Until(tick))
		next, err := ticks.Claim(t.Context(), l, "k", tick)
		if err != nil || next.Fence() <= lease.Fence() {
			t.Fatalf("%v, %v", next, err)
		}
		b := record.NewBackend(s)
		lock := "k@" + tick.UTC().Format(time.RFC3339)
		i, err := b.Inspect(t.Context(), lock)
		if err != nil || i.State != inspect.Kept || i.Owner == "" || i.Remaining < time.Minute || i.Seen != 0 {
			t.Fatalf("%+v, %v", i, err)
		}
		wantTick(t, l, tick, ticks.Elsewhere)
		if _, err := b.ForceRelease(t.Context(), lock, "x"); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("of another owner: %v", err)
		}
		s.LoseReply() // of the read, and then it is repeated
		if _, err := b.ForceRelease(t.Context(), lock, i.Owner); !errors.Is(err, locker.ErrUnavailable) {
			t.Error(err)
		}
		if _, err := b.ForceRelease(t.Context(), lock, next.Token()); err != nil {
			t.Error(err)
		}
		if err := locker.Verify(t.Context(), next); !errors.Is(err, locker.ErrNotHeld) && !errors.Is(err, locker.ErrLost) {
			t.Errorf("released by force: %v", err)
		}
		wantTick(t, l, tick, ticks.Ran)
		if i, err := b.Inspect(t.Context(), "k@2026-01-01T00:00:00Z"); err != nil || i.State != inspect.Free {
			t.Errorf("%+v, %v", i, err)
		}
	})
}

// A tick that was claimed, and whose attempt is given up before the job has begun, is free again.
func TestTickIsReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b, tick := backendOf(t, s), nextTick()
		time.Sleep(time.Until(tick))
		var grants []backend.Request
		seen := &granting{Backend: b, grants: &grants}
		l := locker.NewClient(seen)
		if _, err := ticks.Claim(t.Context(), l, "k", tick); err != nil {
			t.Fatal(err)
		}
		wantTick(t, client(t, s), tick, ticks.Elsewhere)
		if err := b.Release(t.Context(), grants[0]); err != nil {
			t.Error(err)
		}
		wantTick(t, client(t, s), tick, ticks.Ran)
		if err := b.Extend(t.Context(), grants[0]); !errors.Is(err, locker.ErrNotHeld) {
			t.Error(err)
		}
		_ = l.Close()
	})
}

// granting notes what it has granted.
type granting struct {
	*record.Backend
	grants *[]backend.Request
}

func (g *granting) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	grant, err := g.Backend.Acquire(ctx, req)
	if err == nil {
		req.Private = grant.Private
		*g.grants = append(*g.grants, req)
	}
	return grant, err
}

// More ticks than a record has room for are refused while all of them can be claimed yet.
func TestManyTicksAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		l, tick := client(t, s), nextTick()
		time.Sleep(time.Until(tick))
		at := func(i int) time.Time { return tick.Add(time.Duration(i) * time.Millisecond) }
		for i := range 36 {
			wantTick(t, l, at(i), ticks.Ran)
		}
		if n := len(s.Text(ticksRecord)); n >= 1024 {
			t.Errorf("%d bytes", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if got, err := ticks.Do(ctx, l, "k", at(36), nothing); got != ticks.Failed ||
			!strings.Contains(fmt.Sprint(err), "the record has 36 ticks") {
			t.Errorf("%s, %v", got, err)
		}
		wantTick(t, l, tick.Add(-time.Second), ticks.Ran) // it has another record
		time.Sleep(time.Until(tick.Add(66 * time.Second)))
		wantTick(t, l, tick.Add(time.Minute), ticks.Ran)
	})
}

// The record is less than 1 KiB with labels and windows of any length.
func TestTextOfManyTicks(t *testing.T) {
	long := func(int) time.Duration { return 22*time.Hour + 30*time.Minute }
	for name, window := range map[string]func(i int) time.Duration{
		"one window":     long,
		"another window": func(i int) time.Duration { return long(i) + time.Duration(i/35)*time.Minute },
		"many windows":   func(i int) time.Duration { return long(i) + time.Duration(i)*time.Millisecond },
	} {
		for _, char := range []string{"x", "<", `"`, `\`, "é"} {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				label := strings.Repeat(char, 64/len(char))
				l, tick, most := locker.Wrap(client(t, s), locker.Defaults(locker.Label(label))), nextTick(), 0
				time.Sleep(time.Until(tick))
				for n := range 36 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, err := ticks.Do(ctx, l, "k", tick.Add(time.Duration(n)*time.Millisecond), nothing, ticks.Window(window(n)))
					cancel()
					if err == nil {
						most = n + 1
					}
				}
				if n := len(s.Text(ticksRecord)); n >= 1024 || most < 36 && name != "many windows" {
					t.Errorf("%s, %q: %d ticks, %d bytes", name, char, most, n)
				} else {
					t.Logf("%s, %q: %d ticks, %d bytes", name, char, most, n)
				}
			})
		}
	}
}

// A claim is found whose answer was lost, when the record has the tick of another one, too. Their tokens differ.
func TestTokenOfAClaimThatIsFound(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		a, b, tick := client(t, s), client(t, s), nextTick()
		time.Sleep(time.Until(tick))
		first := true
		s.Inject(func(r recordstore.Request) (f recordstore.Fault) {
			if r.Op != "get" && first {
				first, f = false, recordstore.Fault{Twice: true, After: 500 * time.Millisecond}
			}
			return f
		})
		fences := make(chan uint64, 1)
		go func() {
			lease, err := ticks.Claim(t.Context(), a, "k", tick)
			if err != nil {
				t.Error(err)
				fences <- 0
				return
			}
			fences <- lease.Fence()
		}()
		time.Sleep(100 * time.Millisecond)
		lease, err := ticks.Claim(t.Context(), b, "k", tick.Add(time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		if of := <-fences; of >= lease.Fence() {
			t.Errorf("the token %d, and %d of the tick that was claimed later", of, lease.Fence())
		}
	})
}

// denying is a store that says that there is no record, and does not create it.
type denying struct{ record.Store }

func (denying) Get(context.Context, string) ([]byte, string, error) { return nil, "", nil }
func (denying) Create(context.Context, string, []byte) (string, error) {
	return "", record.ErrConflict
}

// A store that hides a record is named, as it is for locks.
func TestTickInAStoreThatHidesItsRecord(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		tick := nextTick()
		time.Sleep(time.Until(tick))
		_, err := claims(t, client(t, denying{s}), tick)
		if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "refuses to create") {
			t.Error(err)
		}
	})
}

// A claim always reads, so nothing of the ticks is remembered.
func TestTicksAreNotRemembered(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b, tick := backendOf(t, s), nextTick()
		time.Sleep(time.Until(tick))
		if _, err := ticks.Claim(t.Context(), locker.NewClient(b), "k", tick); err != nil {
			t.Fatal(err)
		}
		if n := record.Hints(b); n != 0 {
			t.Errorf("%d records", n)
		}
	})
}

// The key of a lock is no other than the name of the record of its ticks, and a record of ticks is no lock.
func TestTicksAreNoLocks(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		l, tick := client(t, s), nextTick()
		time.Sleep(time.Until(tick))
		for _, job := range []string{"k", strings.Repeat("x", 199), strings.Repeat("x", 200), strings.Repeat("y", 300)} {
			lease, err := l.TryLock(t.Context(), job)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []ticks.Outcome{ticks.Ran, ticks.Elsewhere} {
				if got, err := ticks.Do(t.Context(), l, job, tick, nothing); got != want || err != nil {
					t.Errorf("%s, %v; want %s", got, err, want)
				}
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		for _, bad := range []string{`"ticks":"x"`, `"ticks":"a:b"`, `"ticks":"!:1:m"`, `"ticks":"a:1:"`} {
			s.Put(ticksRecord, `{"locker":1,"state":"free","last":1,"nonce":"n",`+bad+`}`)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			if _, err := ticks.Claim(ctx, l, "k", tick.Add(time.Millisecond)); !errors.Is(err, locker.ErrForeignKey) {
				t.Errorf("%s: %v", bad, err)
			}
			cancel()
		}
	})
}
