package record_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/record"
)

const ttl = 500 * time.Millisecond

// inBubble runs a test in virtual time, with an empty store that answers at once.
func inBubble(t *testing.T, f func(t *testing.T, s *recordstore.Store)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		s := recordstore.New()
		t.Cleanup(s.Wait)
		f(t, s)
	})
}

// backend makes a Backend as another process would have it.
func backendOf(t *testing.T, s record.Store, opts ...record.Option) *record.Backend {
	b := record.NewBackend(s, opts...)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func request(ttl time.Duration) backend.Request {
	return backend.Request{Key: "k", Token: backend.NewToken(), TTL: ttl}
}

// try makes an attempt to acquire k. It returns the request with what later requests need.
func try(t *testing.T, b *record.Backend, ttl time.Duration) (backend.Request, error) {
	t.Helper()
	req := request(ttl)
	g, err := b.Acquire(t.Context(), req)
	req.Fence, req.Fences, req.Private = g.Fence, g.Fences, g.Private
	return req, err
}

func acquire(t *testing.T, b *record.Backend, ttl time.Duration) backend.Request {
	t.Helper()
	req, err := try(t, b, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func wantHeld(t *testing.T, b *record.Backend, when string) {
	t.Helper()
	if _, err := try(t, b, ttl); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("%s: got %v, want a lock that is held", when, err)
	}
}

// written is what a record says.
type written struct {
	State  string `json:"state"`
	Owner  string `json:"owner"`
	Token  uint64 `json:"token"`
	Last   uint64 `json:"last"`
	Length int64  `json:"length_ms"`
	Nonce  string `json:"nonce"`
}

func read(t *testing.T, s *recordstore.Store) (w written) {
	t.Helper()
	if err := json.Unmarshal([]byte(s.Text("k")), &w); err != nil {
		t.Fatal(err)
	}
	return w
}

// once returns a function that lets the fault happen to the next request.
func once(fault recordstore.Fault) func(recordstore.Request) recordstore.Fault {
	return func(recordstore.Request) (f recordstore.Fault) {
		f, fault = fault, f
		return f
	}
}

// The first read of another process may be on its way for long, and so may its reply. The record that it shows may be
// younger than the request. So the time of the lock counts from when the reply has arrived.
func TestTimeCountsFromTheReply(t *testing.T) {
	for name, fault := range map[string]recordstore.Fault{
		"a slow request": {Before: 400 * time.Millisecond},
		"a slow reply":   {After: 400 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				holder, other := backendOf(t, s), backendOf(t, s)
				start := time.Now()
				first := make(chan error, 1)
				look := func() {
					s.Inject(once(fault))
					go func() {
						_, err := try(t, other, time.Minute)
						first <- err
					}()
				}
				if fault.After > 0 {
					acquire(t, holder, ttl)
					look()
				} else {
					look()
					time.Sleep(fault.Before - 10*time.Millisecond)
					acquire(t, holder, ttl)
				}
				if err := <-first; !errors.Is(err, locker.ErrHeld) {
					t.Fatal(err)
				}
				seen := time.Since(start)
				for _, d := range []time.Duration{ttl + 10*time.Millisecond, seen + record.Patience(ttl) - 1} {
					time.Sleep(time.Until(start.Add(d)))
					wantHeld(t, other, "after "+d.String())
				}
				time.Sleep(time.Nanosecond)
				acquire(t, other, ttl)
			})
		})
	}
}

// A renewal may write the same as the one before, but for the nonce. Without it, versions that are hashes would not
// change, and others would take a lock that is renewed.
func TestRenewalIsSeen(t *testing.T) {
	for _, forgets := range []bool{false, true} { // a caller that has lost what the grant says does not know its age
		inBubble(t, func(t *testing.T, s *recordstore.Store) {
			holder, other := backendOf(t, s), backendOf(t, s)
			req := acquire(t, holder, ttl)
			if forgets {
				req.Private = nil
			}
			for range 20 {
				wantHeld(t, other, "a lock that is renewed")
				time.Sleep(ttl * 2 / 5)
				if err := holder.Extend(t.Context(), req); err != nil {
					t.Fatal(err)
				}
			}
			wantHeld(t, other, "after the last renewal")
			time.Sleep(record.Patience(ttl))
			acquire(t, other, ttl)
		})
	}
}

// A process that has not seen a record before does not know whether its holder is dead.
func TestTryLockWatches(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		crashed := acquire(t, backendOf(t, s), ttl)
		for range 3 {
			time.Sleep(time.Hour)
			wantHeld(t, backendOf(t, s), "a process that looks for the first time")
		}
		other := backendOf(t, s)
		wantHeld(t, other, "the first look")
		time.Sleep(time.Hour)
		if next := acquire(t, other, ttl); next.Fence <= crashed.Fence {
			t.Errorf("token %d after %d", next.Fence, crashed.Fence)
		}
	})
}

// ahead returns a token that the clock does not reach in a test.
func ahead() uint64 { return uint64(time.Now().Add(24 * time.Hour).UnixMicro()) }

// before brings the store into the state that an attempt finds.
var before = map[string]func(t *testing.T, s *recordstore.Store, b *record.Backend){
	"no record": func(*testing.T, *recordstore.Store, *record.Backend) {},
	"a free record": func(_ *testing.T, s *recordstore.Store, _ *record.Backend) {
		s.Put("k", record.Free(ahead()))
	},
	"the record of a holder that has crashed": func(t *testing.T, s *recordstore.Store, b *record.Backend) {
		acquire(t, backendOf(t, s), ttl)
		wantHeld(t, b, "a lock that another process has")
		time.Sleep(record.Patience(ttl))
	},
}

// The store may execute what an attempt has sent long after the attempt has given up, before or after its undoing.
func TestLateWritesLeaveNothing(t *testing.T) {
	const late = 30 * time.Second
	for what, prepare := range before {
		for when, undone := range map[string]time.Duration{"undone before": 0, "undone after": late + 5*time.Second} {
			t.Run(what+", "+when, func(t *testing.T) {
				inBubble(t, func(t *testing.T, s *recordstore.Store) {
					b, other := backendOf(t, s), backendOf(t, s)
					prepare(t, s, b)
					var last uint64
					if what == "a free record" {
						last = read(t, s).Last
					}
					start, sent := time.Now(), false
					s.Inject(func(r recordstore.Request) (f recordstore.Fault) {
						switch {
						case r.Op == "get":
						case !sent:
							sent, f.Before = true, late
						case time.Since(start) < undone:
							f.Refused = true
						}
						return f
					})
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					if _, err := b.Acquire(ctx, request(5*time.Minute)); !errors.Is(err, locker.ErrUnavailable) {
						t.Fatal(err)
					}
					time.Sleep(late + 10*time.Second)
					if left := s.Taken(); len(left) > 0 {
						t.Errorf("left behind: %s", s.Text("k"))
					}
					if req := acquire(t, other, ttl); req.Fence <= last {
						t.Errorf("token %d after %d", req.Fence, last)
					}
				})
			})
		}
	}
}

// A client library that repeats a request may report the success of the first one as a conflict.
func TestOwnSuccessIsNoConflict(t *testing.T) {
	for what, prepare := range before {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				b, other := backendOf(t, s), backendOf(t, s)
				prepare(t, s, b)
				s.Inject(func(r recordstore.Request) recordstore.Fault { return recordstore.Fault{Twice: r.Op != "get"} })
				req := acquire(t, b, time.Minute)
				if w := read(t, s); w.Token != req.Fence {
					t.Errorf("token %d, and %d in the record", req.Fence, w.Token)
				}
				if err := b.Extend(t.Context(), req); err != nil {
					t.Errorf("Extend: %v", err)
				}
				if err := b.Release(t.Context(), req); err != nil {
					t.Errorf("Release: %v", err)
				}
				acquire(t, other, time.Minute)
				if _, err := b.ForceRelease(t.Context(), "k", ""); err != nil {
					t.Errorf("ForceRelease: %v", err)
				}
				acquire(t, b, time.Minute)
			})
		})
	}
}

// When the release that was reported as a conflict is read back, the next holder may have the lock, and may have
// released it.
func TestOwnReleaseIsNoLoss(t *testing.T) {
	for what, next := range map[string]func(t *testing.T, b *record.Backend){
		"holds it": func(t *testing.T, b *record.Backend) {
			req := acquire(t, b, time.Minute)
			if err := b.Extend(t.Context(), req); err != nil {
				t.Error(err)
			}
		},
		"has released it": func(t *testing.T, b *record.Backend) {
			if err := b.Release(t.Context(), acquire(t, b, time.Minute)); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				b, other := backendOf(t, s), backendOf(t, s)
				req := acquire(t, b, time.Minute)
				s.Inject(once(recordstore.Fault{Twice: true, After: time.Second}))
				released := make(chan error, 1)
				go func() { released <- b.Release(t.Context(), req) }()
				time.Sleep(time.Millisecond)
				next(t, other)
				if err := <-released; err != nil {
					t.Errorf("Release: %v", err)
				}
			})
		})
	}
}

// The record tells whether a release was executed, after some other owners, too. After more of them, Unlock says that
// the outcome is unknown, and not that the lock was lost, also if its time is over when the answer comes.
func TestReleaseBeforeManyOthersIsNoLoss(t *testing.T) {
	for _, ttl := range []time.Duration{time.Minute, 600 * time.Millisecond} {
		for others := 1; others <= 20; others++ {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				l, other := client(t, s), backendOf(t, s)
				lease, err := l.TryLock(t.Context(), "k", locker.TTL(ttl))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(100 * time.Millisecond)
				s.Inject(once(recordstore.Fault{Twice: true, After: 700 * time.Millisecond}))
				released := make(chan error, 1)
				go func() { released <- lease.Unlock(t.Context()) }()
				time.Sleep(time.Millisecond)
				var last backend.Request
				for range others {
					if last.Key != "" {
						if err := other.Release(t.Context(), last); err != nil {
							t.Error(err)
						}
					}
					last = acquire(t, other, time.Minute)
				}
				switch err := <-released; {
				case errors.Is(err, locker.ErrLost) || errors.Is(err, locker.ErrNotHeld):
					t.Errorf("%d others: %v", others, err)
				case others <= 12 && err != nil, others > 12 && !errors.Is(err, locker.ErrUnavailable):
					t.Errorf("%d others: %v", others, err)
				}
				if err := other.Verify(t.Context(), last); err != nil {
					t.Errorf("the last owner: %v", err)
				}
			})
		}
	}
}

// A lock that was taken by force is reported as lost, however many others have had it before and since.
func TestLossByForceIsReported(t *testing.T) {
	for _, before := range []int{0, 1, 20} {
		inBubble(t, func(t *testing.T, s *recordstore.Store) {
			l, other := client(t, s), backendOf(t, s)
			for range before {
				if err := other.Release(t.Context(), acquire(t, other, ttl)); err != nil {
					t.Error(err)
				}
			}
			lease, err := l.TryLock(t.Context(), "k", locker.TTL(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.ForceRelease(t.Context(), "k", ""); err != nil {
				t.Error(err)
			}
			for range 5 {
				if err := other.Release(t.Context(), acquire(t, other, ttl)); err != nil {
					t.Error(err)
				}
			}
			if err := lease.Unlock(t.Context()); !errors.Is(err, locker.ErrLost) {
				t.Errorf("after %d others: %v", before, err)
			}
		})
	}
}

// A store that says that there is no record, and refuses to create it because there is one, is reported as what it is.
func TestRecordThatIsThereAndIsNot(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		l := client(t, s)
		s.Inject(func(r recordstore.Request) recordstore.Fault { return recordstore.Fault{Doubted: r.Op == "create"} })
		for what, call := range map[string]func() error{
			"TryLock": func() error { _, err := l.TryLock(t.Context(), "k"); return err },
			"Lock":    func() error { _, err := l.Lock(t.Context(), "k"); return err },
		} {
			if err := call(); !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "see what deletes") {
				t.Errorf("%s: %v", what, err)
			}
		}
		s.Inject(nil)
		if _, err := l.TryLock(t.Context(), "k"); err != nil {
			t.Error(err)
		}
	})
}

// A conflict that was none ends no call, and leaves nothing behind.
func TestConflictThatWasNone(t *testing.T) {
	for what, prepare := range before {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *recordstore.Store) {
				b := backendOf(t, s)
				prepare(t, s, b)
				writes := 0
				s.Inject(func(r recordstore.Request) (f recordstore.Fault) {
					if r.Op != "get" {
						writes++
						f.Doubted = writes%2 == 1
					}
					return f
				})
				req := acquire(t, b, time.Minute)
				if err := b.Extend(t.Context(), req); err != nil {
					t.Errorf("Extend: %v", err)
				}
				if err := b.Release(t.Context(), req); err != nil {
					t.Errorf("Release: %v", err)
				}
				if left := s.Taken(); len(left) > 0 {
					t.Errorf("left behind: %s", s.Text("k"))
				}
			})
		})
	}
}

// A release writes that the lock is free, so that tokens go on from there.
func TestReleaseKeepsTheRecord(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b := backendOf(t, s)
		req := request(ttl)
		req.Fences = backend.MaxFences
		g, err := b.Acquire(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if first := uint64(time.Now().UnixMicro()); g.Fence != first || g.Fences != backend.MaxFences {
			t.Errorf("tokens %d and %d more, want them from %d on", g.Fence, g.Fences-1, first)
		}
		req.Fence, req.Private = g.Fence, g.Private
		if err := b.Release(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		last := g.Fence + backend.MaxFences - 1
		if w := read(t, s); w.State != "free" || w.Last != last {
			t.Errorf("the record of a free lock is %s", s.Text("k"))
		}
		if next := acquire(t, backendOf(t, s), ttl); next.Fence != last+1 {
			t.Errorf("token %d after %d", next.Fence, last)
		}
	})
}

// A release whose answer was lost has released the lock. To release it again is no error, and touches nobody's lock.
func TestReleaseAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b, other := backendOf(t, s), backendOf(t, s)
		for _, keep := range []time.Duration{0, time.Second} {
			req := acquire(t, b, time.Minute)
			req.Keep = keep
			s.LoseReply()
			if err := b.Release(t.Context(), req); !errors.Is(err, locker.ErrUnavailable) {
				t.Fatal(err)
			}
			if err := b.Release(t.Context(), req); err != nil {
				t.Error(err)
			}
			if keep > 0 {
				wantHeld(t, other, "a lock that is kept")
				time.Sleep(record.Patience(keep))
			}
			next := acquire(t, other, time.Minute)
			if err := b.Release(t.Context(), req); !errors.Is(err, locker.ErrNotHeld) {
				t.Error(err)
			}
			time.Sleep(time.Second) // the release that was not answered is repeated
			if err := other.Release(t.Context(), next); err != nil {
				t.Error(err)
			}
		}
	})
}

// The length of a record covers the longest promise that was asked for, also by an extension that was not answered.
func TestExtendShortensNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b := backendOf(t, s)
		req := acquire(t, b, time.Minute)
		extend := func(ttl time.Duration) error {
			req := req
			req.TTL = ttl
			return b.Extend(t.Context(), req)
		}
		wantLength := func(want time.Duration) {
			t.Helper()
			if got := time.Duration(read(t, s).Length) * time.Millisecond; got != want {
				t.Errorf("a length of %v, want %v", got, want)
			}
		}
		time.Sleep(time.Second)
		if err := extend(ttl); err != nil {
			t.Error(err)
		}
		wantLength(59 * time.Second)
		s.LoseReply()
		if err := extend(time.Hour); !errors.Is(err, locker.ErrUnavailable) {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := extend(ttl); err != nil {
			t.Error(err)
		}
		wantLength(time.Hour - time.Second)
		lost := req
		lost.TTL, lost.Private = ttl, nil
		if err := b.Extend(t.Context(), lost); err != nil {
			t.Error(err)
		}
		wantLength(time.Hour - time.Second) // what that caller knows
	})
}

// Somebody has deleted the record of a lock that is held.
func TestDeletedRecord(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b, other := backendOf(t, s), backendOf(t, s)
		req := acquire(t, b, time.Minute)
		time.Sleep(time.Second)
		s.Delete("k")
		if err := b.Verify(t.Context(), req); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("Verify: %v", err)
		}
		if err := b.Extend(t.Context(), req); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("Extend: %v", err)
		}
		next := acquire(t, other, time.Minute)
		if next.Fence <= req.Fence {
			t.Errorf("token %d after %d", next.Fence, req.Fence)
		}
		if err := b.Release(t.Context(), req); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("Release: %v", err)
		}
		if err := other.Verify(t.Context(), next); err != nil {
			t.Errorf("Verify by the next holder: %v", err)
		}
	})
}

// An operator releases the lock between the holder's renewals. The holder learns that, and does not write over it.
func TestForcedReleaseIsFinal(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b := backendOf(t, s)
		req := acquire(t, b, time.Minute)
		if _, err := backendOf(t, s).ForceRelease(t.Context(), "k", req.Token[:8]); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{
			"Extend": b.Extend(t.Context(), req), "Release": b.Release(t.Context(), req), "Verify": b.Verify(t.Context(), req),
		} {
			if !errors.Is(err, locker.ErrNotHeld) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if w := read(t, s); w.State != "free" || strings.Contains(s.Text("k"), req.Token) {
			t.Errorf("the record is %s", s.Text("k"))
		}
	})
}

// Requests cost money on some stores.
func TestRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b := backendOf(t, s)
		var seen map[string]int
		want := func(what string, gets, creates, replaces int) {
			t.Helper()
			now := s.Requests()
			for op, n := range map[string]int{"get": gets, "create": creates, "replace": replaces} {
				if got := now[op] - seen[op]; got != n {
					t.Errorf("%s: %d requests to %s, want %d", what, got, op, n)
				}
			}
			seen = now
		}
		req := acquire(t, b, ttl)
		want("the first acquisition", 1, 1, 0)
		if err := b.Extend(t.Context(), req); err != nil {
			t.Error(err)
		}
		want("a renewal", 0, 0, 1)
		if err := b.Release(t.Context(), req); err != nil {
			t.Error(err)
		}
		want("a release", 0, 0, 1)
		req = acquire(t, b, ttl)
		want("an acquisition by the one who has released it", 0, 0, 1)
		wantHeld(t, backendOf(t, s), "a lock that is held")
		want("an attempt", 1, 0, 0)
		if err := b.Verify(t.Context(), req); err != nil {
			t.Error(err)
		}
		want("Verify", 1, 0, 0)
		if err := b.Release(t.Context(), req); err != nil {
			t.Error(err)
		}
		want("a release", 0, 0, 1)
		acquire(t, backendOf(t, s), ttl)
		want("an acquisition by another process", 1, 0, 1)
	})
}
