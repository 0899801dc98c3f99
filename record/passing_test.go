package record_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/passing"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/transfer"
)

// export passes a lock on for that long, and returns the owner of the text.
func export(t *testing.T, b *record.Backend, req backend.Request, ttl time.Duration) (to string) {
	t.Helper()
	req.TTL, to = ttl, passing.NewOwner()
	if err := b.Export(t.Context(), req, to); err != nil {
		t.Fatal(err)
	}
	return to
}

func resume(t *testing.T, b *record.Backend, from string, ttl time.Duration) (backend.Request, error) {
	t.Helper()
	req := request(ttl)
	g, err := b.Resume(t.Context(), req, from)
	req.Fence, req.Fences, req.Private = g.Fence, g.Fences, g.Private
	return req, err
}

// Those who watch take a lock that was exported when the TTL of the text is over, whatever that of the lease was. A
// process that has watched refuses the text then, and without a clock, one that has not resumes what nobody has taken.
func TestTextIsWatched(t *testing.T) {
	for _, ttls := range [][2]time.Duration{{ttl, 4 * ttl}, {time.Hour, ttl}} {
		inBubble(t, func(t *testing.T, s *recordstore.Store) {
			old, watcher, other := backendOf(t, s), backendOf(t, s), backendOf(t, s)
			req := acquire(t, old, ttls[0])
			wantHeld(t, watcher, "a lock")
			from, lasts := export(t, old, req, ttls[1]), record.Patience(ttls[1])
			wantHeld(t, watcher, "a lock that was exported")
			time.Sleep(lasts - 1)
			wantHeld(t, watcher, "a lock that was exported, at the end of its time")
			time.Sleep(time.Nanosecond)
			if _, err := resume(t, watcher, from, ttl); !errors.Is(err, locker.ErrNotHeld) {
				t.Errorf("Resume by a process that has seen the end: %v", err)
			}
			next, err := resume(t, other, from, ttl)
			if err != nil {
				t.Fatalf("Resume by another process: %v", err)
			}
			wantHeld(t, watcher, "a lock that was resumed")
			time.Sleep(record.Patience(ttl))
			last := acquire(t, watcher, ttl)
			if next.Fence <= req.Fence || last.Fence <= next.Fence {
				t.Errorf("tokens %d, %d and %d", req.Fence, next.Fence, last.Fence)
			}
			if _, err := resume(t, other, from, ttl); !errors.Is(err, locker.ErrNotHeld) {
				t.Errorf("Resume of a lock that somebody else has: %v", err)
			}
		})
	}
}

// Where the store tells its time, a lock that was exported ends by it for those who look once, earlier than that of the
// lease would have, and no earlier than the text says: also if what the exporter believes of that time is old.
func TestTextEndsByTheTimeOfTheStore(t *testing.T) {
	for name, late := range map[string]time.Duration{"a clock that goes on": 0, "a clock that has jumped": time.Hour} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				var jumped time.Duration
				ahead := func() time.Duration { return jumped }
				process := func() *record.Backend { return backendOf(t, service{s, ahead, nil}) }
				old := process()
				req := acquire(t, old, 24*time.Hour)
				jumped = late
				const lasts = 10 * time.Second
				from, began := export(t, old, req, lasts), time.Now()
				for time.Since(began) < lasts {
					wantHeld(t, process(), "before the end of the text")
					time.Sleep(500 * time.Millisecond)
				}
				time.Sleep(slack + record.Patience(lasts) - lasts)
				if _, err := resume(t, process(), from, ttl); !errors.Is(err, locker.ErrNotHeld) {
					t.Errorf("Resume after the end of the text: %v", err)
				}
				acquire(t, process(), ttl)
			})
		})
	}
}

// Between the two writes of an Export whose end was too early, another process writes the record of the group.
func TestTextOfAGroupEndsByTheTimeOfTheStore(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		var jumped time.Duration
		process := func() *record.Backend {
			return backendOf(t, service{s, func() time.Duration { return jumped }, nil})
		}
		old := process()
		req := grabPlace(t, old, 1, time.Hour)
		jumped = time.Hour
		writes := 0
		s.Inject(func(r recordstore.Request) (f recordstore.Fault) {
			if r.Op == "replace" {
				if writes++; writes == 2 {
					f.Before = time.Second
				}
			}
			return f
		})
		exported := make(chan bool)
		go func() {
			export(t, old, req, 10*time.Second)
			close(exported)
		}()
		time.Sleep(500 * time.Millisecond)
		grabPlace(t, process(), 2, time.Hour)
		<-exported
		if _, err := inGroup(t, process(), 1, ttl); !errors.Is(err, locker.ErrHeld) {
			t.Errorf("before the end of the text: %v", err)
		}
	})
}

// What was sent before the Export, and comes after it, leaves the text as it is, and what whoever has resumed it has.
func TestLateRequestsOfTheExporter(t *testing.T) {
	for name, call := range map[string]func(b *record.Backend, ctx context.Context, req backend.Request) error{
		"an extension": (*record.Backend).Extend,
		"a release":    (*record.Backend).Release,
	} {
		for _, when := range []string{"exported", "resumed"} {
			t.Run(name+", "+when, func(t *testing.T) {
				inBubble(t, func(t *testing.T, s *recordstore.Store) {
					old, other := backendOf(t, s), backendOf(t, s)
					req := acquire(t, old, time.Minute)
					s.Inject(once(recordstore.Fault{Before: time.Second}))
					late := make(chan error, 1)
					go func() { late <- call(old, t.Context(), req) }()
					time.Sleep(time.Millisecond)
					from := export(t, old, req, time.Minute)
					if when == "resumed" {
						if _, err := resume(t, other, from, time.Minute); err != nil {
							t.Fatal(err)
						}
					}
					before := s.Text("k")
					if err := <-late; !errors.Is(err, locker.ErrNotHeld) {
						t.Error(err)
					}
					if err := old.Close(); err != nil {
						t.Error(err)
					}
					if s.Text("k") != before {
						t.Errorf("got %s, after %s", s.Text("k"), before)
					}
				})
			})
		}
	}
}

// An Export whose answer is lost, or that comes when nobody waits for it any more, is undone by releases with the owner
// before, and with that of the text.
func TestExportInDoubt(t *testing.T) {
	for name, fault := range map[string]recordstore.Fault{
		"lost": {Lost: true}, "late": {Before: 2 * time.Second}, "refused": {Refused: true}, "twice": {Twice: true},
		"doubted": {Doubted: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				old := backendOf(t, s, record.Timeout(time.Second))
				req, to := acquire(t, old, time.Minute), passing.NewOwner()
				s.Inject(once(fault))
				err := old.Export(t.Context(), req, to)
				if succeeds := fault.Twice || fault.Doubted; succeeds != (err == nil) {
					t.Error(err)
				}
				released := old.Release(t.Context(), req)
				if errors.Is(released, locker.ErrNotHeld) {
					req.Token = to
					released = old.Release(t.Context(), req)
				}
				if released != nil {
					t.Error(released)
				}
				time.Sleep(5 * time.Second)
				if w := read(t, s); w.State != "free" {
					t.Errorf("left: %s", s.Text("k"))
				}
			})
		})
	}
}

// An attempt to resume that has failed in doubt uses the text up, however late its request comes.
func TestResumeInDoubtUsesTheTextUp(t *testing.T) {
	for name, fault := range map[string]recordstore.Fault{
		"lost": {Lost: true}, "late": {Before: 2 * time.Second}, "refused": {Refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				old, other := backendOf(t, s), backendOf(t, s, record.Timeout(time.Second))
				from := export(t, old, acquire(t, old, time.Minute), time.Minute)
				writes := false
				s.Inject(func(r recordstore.Request) (f recordstore.Fault) {
					if !writes && r.Op == "replace" {
						writes, f = true, fault
					}
					return f
				})
				if _, err := resume(t, other, from, time.Minute); !errors.Is(err, locker.ErrUnavailable) {
					t.Error(err)
				}
				time.Sleep(5 * time.Second)
				if w := read(t, s); w.State != "free" {
					t.Errorf("left: %s", s.Text("k"))
				}
				if _, err := resume(t, old, from, time.Minute); !errors.Is(err, locker.ErrNotHeld) {
					t.Errorf("a text that was used up: %v", err)
				}
			})
		})
	}
}

// What a process remembers of a lock that it has released itself does not count.
func TestResumeLooks(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		old, other := backendOf(t, s), backendOf(t, s)
		if err := other.Release(t.Context(), acquire(t, other, ttl)); err != nil {
			t.Fatal(err)
		}
		if _, err := resume(t, other, export(t, old, acquire(t, old, ttl), ttl), ttl); err != nil {
			t.Error(err)
		}
	})
}

// An Export is a write, and a Resume a read and a write, also in the record of a group, whose other locks stay.
func TestRequestsOfATransfer(t *testing.T) {
	for _, key := range []string{"k", "{k}#3"} {
		inBubble(t, func(t *testing.T, s *recordstore.Store) {
			old, other := client(t, s), client(t, s)
			beside, err := old.TryLock(t.Context(), "{k}#4", locker.NoRenewal())
			if err != nil {
				t.Fatal(err)
			}
			lease, err := old.TryLock(t.Context(), key, locker.NoRenewal())
			if err != nil {
				t.Fatal(err)
			}
			before := s.Requests()
			text, err := transfer.Export(t.Context(), lease, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			next, err := transfer.Resume(t.Context(), other, text, locker.NoRenewal())
			if err != nil {
				t.Fatal(err)
			}
			after := s.Requests()
			if reads, writes := after["get"]-before["get"], after["replace"]-before["replace"]; reads != 1 || writes != 2 {
				t.Errorf("%s: %d reads and %d writes", key, reads, writes)
			}
			for _, l := range []locker.Lease{beside, next} {
				if err := errors.Join(l.Extend(t.Context()), l.Unlock(t.Context())); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// texts are those that processes have exported, and not resumed as far as they know.
type texts struct {
	mu   sync.Mutex
	all  []exported
	used map[transfer.Text]bool
}

type exported struct {
	transfer.Text
	fence uint64
}

func (ts *texts) add(x exported) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.all = append(ts.all, x)
}

// any returns one of the last texts, which another caller may have used already.
func (ts *texts) any(rng *rand.Rand) (exported, bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if len(ts.all) == 0 {
		return exported{}, false
	}
	return ts.all[len(ts.all)-1-rng.IntN(min(2, len(ts.all)))], true
}

func (ts *texts) resume(ctx context.Context, l *locker.Client, j *judge, x exported, ttl time.Duration) locker.Lease {
	before := j.asked()
	lease, err := transfer.Resume(ctx, l, x.Text, locker.TTL(ttl))
	if err != nil {
		return nil
	}
	j.granted(lease, before)
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.used[x.Text] || lease.Fence() <= x.fence {
		j.t.Errorf("token %d after %d, of a text that was used: %v", lease.Fence(), x.fence, ts.used[x.Text])
	}
	ts.used[x.Text] = true
	return lease
}

// Whatever happens to requests, one lease at most comes of a text, beside no other holder, and with a greater token.
func TestTransfersUnderFaults(t *testing.T) {
	eachSeed(t, func(t *testing.T, s *recordstore.Store, rng *rand.Rand) {
		ts := &texts{used: make(map[transfer.Text]bool)}
		run(t, s, rng, 4, func(rng *rand.Rand, l *locker.Client, j *judge) {
			ttl := 100*time.Millisecond + time.Duration(rng.Int64N(int64(2*time.Second)))
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.Int64N(int64(5*time.Second))))
			defer cancel()
			var lease locker.Lease
			if x, ok := ts.any(rng); ok && rng.IntN(3) > 0 {
				lease = ts.resume(ctx, l, j, x, ttl)
			} else {
				before := j.asked()
				var err error
				if lease, err = l.Lock(ctx, "k", locker.TTL(ttl)); err == nil {
					j.granted(lease, before)
				} else {
					lease = nil
				}
			}
			if lease == nil {
				return
			}
			time.Sleep(time.Duration(rng.Int64N(int64(ttl))))
			if rng.IntN(5) == 0 {
				keep(ctx, rng, lease, false)
				return
			}
			lasts := ttl/2 + time.Duration(rng.Int64N(int64(ttl)))
			text, err := transfer.Export(ctx, lease, lasts)
			if err == nil {
				ts.add(exported{text, lease.Fence()})
			} else if rng.IntN(2) == 0 {
				_ = lease.Unlock(ctx)
			}
		})
		s.Inject(nil)
		if len(ts.used) == 0 {
			t.Errorf("none of %d texts was resumed", len(ts.all))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		if _, err := client(t, s).Lock(ctx, "k"); err != nil {
			t.Errorf("after the faults: %v", err)
		}
	})
}

// Whatever happens to requests, nothing is left of an Export or a Resume in doubt: if the lock is taken at the end,
// somebody has its text.
func TestNothingIsLeftOfTransfersUnderFaults(t *testing.T) {
	eachSeed(t, func(t *testing.T, s *recordstore.Store, rng *rand.Rand) {
		ts := &texts{used: make(map[transfer.Text]bool)}
		run(t, s, rng, 3, func(rng *rand.Rand, l *locker.Client, j *judge) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.Int64N(int64(2*time.Second))))
			defer cancel()
			before := j.asked()
			lease, err := l.Lock(ctx, "k", locker.TTL(time.Hour))
			if err != nil {
				if x, ok := ts.any(rng); ok {
					if lease := ts.resume(ctx, l, j, x, time.Hour); lease != nil {
						_ = lease.Unlock(ctx)
					}
				}
				return
			}
			j.granted(lease, before)
			text, err := transfer.Export(ctx, lease, time.Hour)
			if err != nil {
				for errors.Is(lease.Unlock(ctx), locker.ErrUnavailable) {
					time.Sleep(100 * time.Millisecond)
				}
				return
			}
			x := exported{text, lease.Fence()}
			ts.add(x)
			if lease := ts.resume(ctx, l, j, x, time.Hour); lease != nil {
				_ = lease.Unlock(ctx)
			}
		})
		s.Inject(nil)
		time.Sleep(time.Minute)
		l := client(t, s)
		for _, x := range ts.all {
			if lease, err := transfer.Resume(t.Context(), l, x.Text); err == nil {
				_ = lease.Unlock(t.Context())
			}
		}
		if left := s.Taken(); len(left) > 0 {
			t.Errorf("left behind: %s", s.Text("k"))
		}
	})
}
