package postgreslock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
)

// roundTrip is how long a statement takes.
const roundTrip = 10 * time.Millisecond

// fake is a joiner without a server, and what it has sent.
type fake struct {
	joiner
	running sync.WaitGroup

	mu     sync.Mutex
	joined [][]string // the tokens of each statement of the senders
	single []string   // the tokens that callers have sent alone

	passed func(token string) bool // says which changes are passed over
	fails  func(statement int) error
	hangs  func(statement int) bool
	full   chan struct{} // closed when the pool has connections; nil: it always has
	silent int           // how many connections are silent when the pool tries them
	slow   time.Duration // how long the server takes to answer, to a ping, too
}

func newFake() *fake {
	f := &fake{
		passed: func(string) bool { return false }, fails: func(int) error { return nil },
		hangs: func(int) bool { return false },
	}
	f.joiner = joiner{
		tasks:   &f.running,
		timeout: DefaultTimeout,
		connect: func(limit time.Duration) (func(all []*change) ([]*string, error), error) {
			f.mu.Lock()
			f.silent--
			silent := f.silent >= 0
			f.mu.Unlock()
			if silent {
				time.Sleep(DefaultTimeout)
				return nil, context.DeadlineExceeded
			}
			if time.Sleep(min(f.slow, limit)); f.slow > limit {
				return nil, context.DeadlineExceeded
			}
			if f.full != nil {
				select {
				case <-f.full:
				case <-time.After(DefaultTimeout):
					return nil, context.DeadlineExceeded
				}
			}
			return f.send, nil
		},
		most: 2 * maxSenders,
		alone: func(_ context.Context, c *change) (string, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.single = append(f.single, c.token)
			return "alone " + c.token, nil
		},
		crowded: func(err error) error { return err },
	}
	return f
}

func (f *fake) send(all []*change) ([]*string, error) {
	if len(all) == 0 {
		return nil, nil
	}
	var tokens []string
	owners := make([]*string, len(all))
	for i, c := range all {
		tokens = append(tokens, c.token)
		if owner := "owner " + c.token; !f.passed(c.token) {
			owners[i] = &owner
		}
	}
	f.mu.Lock()
	n := len(f.joined)
	f.joined = append(f.joined, tokens)
	f.mu.Unlock()
	limit := limitOf(f.timeout, all...)
	if time.Sleep(min(f.slow, limit)); f.slow > limit {
		return nil, context.DeadlineExceeded
	}
	time.Sleep(roundTrip)
	if f.hangs(n) {
		time.Sleep(DefaultTimeout)
	}
	return owners, f.fails(n)
}

// ask makes changes at the same time, and returns the answers, or the errors, by token.
func (f *fake) ask(ctx context.Context, tokens ...string) func() map[string]string {
	var all sync.WaitGroup
	var mu sync.Mutex
	answers := make(map[string]string)
	for _, token := range tokens {
		all.Go(func() {
			answer, err := f.do(&change{ctx: ctx, token: token})
			if err != nil {
				answer = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			answers[token] = answer
		})
	}
	return func() map[string]string {
		all.Wait()
		return answers
	}
}

func numbered(n int) (tokens []string) {
	for i := range n {
		tokens = append(tokens, fmt.Sprint(i))
	}
	return tokens
}

// in runs a test in virtual time with a fake whose senders have all ended at its end.
func in(t *testing.T, test func(t *testing.T, f *fake)) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		f := newFake()
		test(t, f)
		f.running.Wait()
		if f.senders != 0 || f.connecting != 0 || len(f.waiting) > 0 {
			t.Errorf("at the end: %d senders, %d of them connecting, %d changes", f.senders, f.connecting, len(f.waiting))
		}
	})
}

// wantAnswers checks that each caller has got the answer to its own change.
func wantAnswers(t *testing.T, got map[string]string, want func(token string) string, tokens ...string) {
	t.Helper()
	for _, token := range tokens {
		if got[token] != want(token) {
			t.Errorf("the caller of %s: got %q, want %q", token, got[token], want(token))
		}
	}
}

func own(token string) string { return "owner " + token }

// A few changes at the same time take a round trip each, and a statement. Many take a few.
func TestChangesAtTheSameTimeAreJoined(t *testing.T) {
	in(t, func(t *testing.T, f *fake) {
		start := time.Now()
		var answers []func() map[string]string
		for range maxSenders {
			answers = append(answers, f.ask(t.Context(), "x"))
			synctest.Wait()
		}
		for _, answer := range answers {
			wantAnswers(t, answer(), own, "x")
		}
		if n, took := len(f.joined), time.Since(start); n != maxSenders || took != roundTrip {
			t.Errorf("%d changes: got %d statements in %v, want a round trip of %v", maxSenders, n, took, roundTrip)
		}
		f.joined, start = nil, time.Now()
		wantAnswers(t, f.ask(t.Context(), numbered(64)...)(), own, numbered(64)...)
		if n, took := len(f.joined), time.Since(start); n > maxSenders+1 || took > 2*roundTrip {
			t.Errorf("64 changes at the same time: got %d statements in %v, want %d in two round trips", n, took,
				maxSenders+1)
		}
		f.joined = nil
		wantAnswers(t, f.ask(t.Context(), numbered(1000)...)(), own, numbered(1000)...)
		for _, tokens := range f.joined {
			if len(tokens) > maxStep {
				t.Errorf("got a statement for %d changes, want at most %d", len(tokens), maxStep)
			}
		}
	})
}

// gathered makes n changes that one statement is for, because it finds all senders busy. It returns when they wait.
func (f *fake) gathered(ctx context.Context, n int) (answers func() map[string]string) {
	for i := range maxSenders {
		f.ask(ctx, fmt.Sprint("busy ", i))
		synctest.Wait()
	}
	answers = f.ask(ctx, numbered(n)...)
	synctest.Wait()
	return answers
}

// A change that was passed over, because another transaction changes its lock, is sent alone by its caller.
func TestChangeThatIsPassedOver(t *testing.T) {
	in(t, func(t *testing.T, f *fake) {
		f.passed = func(token string) bool { return token == "3" || token == "7" }
		got := f.gathered(t.Context(), 10)()
		wantAnswers(t, got, func(token string) string {
			if f.passed(token) {
				return "alone " + token
			}
			return own(token)
		}, numbered(10)...)
		if slices.Sort(f.single); !slices.Equal(f.single, []string{"3", "7"}) {
			t.Errorf("sent alone: %q, want 3 and 7", f.single)
		}
	})
}

// If the server refuses the statement for several changes, or it was not sent, each of them is sent alone, and has an
// outcome of its own. If it is not known whether it was executed, each of the callers learns that.
func TestStatementThatFails(t *testing.T) {
	for _, c := range []struct {
		err   error
		alone bool
	}{
		{&pgconn.PgError{Severity: "ERROR", Code: noRight, Message: "refused"}, true},
		{&pgconn.PgError{Severity: "FATAL", Code: "57P01", Message: "shutting down"}, false},
		{io.ErrUnexpectedEOF, false},
		{notSent{errors.New("not sent")}, true},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			in(t, func(t *testing.T, f *fake) {
				f.fails = func(n int) error {
					if n < maxSenders {
						return nil
					}
					return c.err
				}
				got := f.gathered(t.Context(), 10)()
				wantAnswers(t, got, func(token string) string {
					if c.alone {
						return "alone " + token
					}
					return c.err.Error()
				}, numbered(10)...)
				if !c.alone && len(f.single) > 0 {
					t.Errorf("sent alone: %q, want none", f.single)
				}
			})
		})
	}
}

// A caller returns when its context ends, whether its change was sent or not. Those of the others are sent, and the
// statement that it is a part of goes on.
func TestCallerThatLeaves(t *testing.T) {
	in(t, func(t *testing.T, f *fake) {
		ctx, leave := context.WithCancel(t.Context())
		sent := f.ask(ctx, "sent")
		synctest.Wait()
		others := f.gathered(t.Context(), 5)
		waiting := f.ask(ctx, "waiting")
		synctest.Wait()
		last := f.ask(t.Context(), "last")
		synctest.Wait()
		start := time.Now()
		leave()
		wantAnswers(t, sent(), func(string) string { return context.Canceled.Error() }, "sent")
		wantAnswers(t, waiting(), func(string) string { return context.Canceled.Error() }, "waiting")
		if took := time.Since(start); took != 0 {
			t.Errorf("callers whose context had ended returned after %v", took)
		}
		wantAnswers(t, others(), own, numbered(5)...)
		wantAnswers(t, last(), own, "last")
		all := strings.Join(slices.Concat(f.joined...), ",")
		if !strings.Contains(all, "sent") || strings.Contains(all, "waiting") {
			t.Errorf("got statements for %s", all)
		}
	})
}

// Changes do not wait for long for statements that hang, as on connections that are silent.
func TestSendersThatHang(t *testing.T) {
	in(t, func(t *testing.T, f *fake) {
		f.hangs = func(n int) bool { return n < maxSenders }
		start := time.Now()
		wantAnswers(t, f.gathered(t.Context(), 10)(), own, numbered(10)...)
		if took := time.Since(start); took > stalled+2*roundTrip {
			t.Errorf("beside senders that hang, changes took %v", took)
		}
	})
}

// Nor do they wait for senders whose connections turn out to be silent when the pool tries them.
func TestSendersWithoutConnections(t *testing.T) {
	in(t, func(t *testing.T, f *fake) {
		f.silent = maxSenders
		start := time.Now()
		first := f.ask(t.Context(), numbered(maxSenders)...)
		wantAnswers(t, f.ask(t.Context(), "a", "b", "c")(), own, "a", "b", "c")
		wantAnswers(t, first(), own, numbered(maxSenders)...)
		if took := time.Since(start); took > stalled+2*roundTrip {
			t.Errorf("beside senders that wait for their connections, changes took %v", took)
		}
	})
}

// An extension of a lock with a short TTL, which gives its connection up early, costs no other lock its extension while
// the server is slow.
func TestShortLocksCostNoOthers(t *testing.T) {
	for _, ttl := range []time.Duration{locker.MinTTL, 50 * time.Millisecond, time.Second} {
		t.Run(ttl.String(), func(t *testing.T) {
			in(t, func(t *testing.T, f *fake) {
				f.slow = max(ttl, stalled) + roundTrip
				var all sync.WaitGroup
				for n := range 100 {
					for token, its := range map[string]time.Duration{"short": ttl, "long": time.Minute} {
						all.Go(func() {
							time.Sleep(time.Duration(n) * ttl / 3)
							got, err := f.do(&change{ctx: t.Context(), token: token, ttl: its.Microseconds()})
							if token == "long" && (err != nil || got != own(token)) {
								t.Errorf("extension %d of a long lock: %q, %v", n, got, err)
							}
						})
					}
				}
				all.Wait()
			})
		})
	}
}

// A lock with the shortest TTL costs no connection of a server that answers.
func TestShortLocksKeepTheirConnections(t *testing.T) {
	in(t, func(t *testing.T, f *fake) {
		f.slow = stalled / 2
		got, err := f.do(&change{ctx: t.Context(), token: "short", ttl: locker.MinTTL.Microseconds()})
		if err != nil || got != own("short") {
			t.Errorf("an extension that was answered after %v: %q, %v", f.slow, got, err)
		}
	})
}

// If no connection is to be had, a change fails after the timeout, even if the senders have begun to wait before it.
func TestNoConnectionIsToBeHad(t *testing.T) {
	in(t, func(t *testing.T, f *fake) {
		f.full = make(chan struct{})
		first := f.ask(t.Context(), numbered(maxSenders)...)
		time.Sleep(time.Millisecond)
		start := time.Now()
		want := func(string) string { return context.DeadlineExceeded.Error() }
		wantAnswers(t, f.ask(t.Context(), "late")(), want, "late")
		if took := time.Since(start); took > DefaultTimeout+2*stalled {
			t.Errorf("a change has waited for %v", took)
		}
		wantAnswers(t, first(), want, numbered(maxSenders)...)
	})
}

// While the pool is full, changes are gathered, and each waits for a connection for the timeout.
func TestChangesWaitForAConnection(t *testing.T) {
	in(t, func(t *testing.T, f *fake) {
		f.full = make(chan struct{})
		answers := f.ask(t.Context(), numbered(64)...)
		time.Sleep(DefaultTimeout / 2)
		start := time.Now()
		close(f.full)
		wantAnswers(t, answers(), own, numbered(64)...)
		if n := len(f.joined); n != 1 || time.Since(start) != roundTrip {
			t.Errorf("when the pool has connections again: got %d statements in %v, want one", n, time.Since(start))
		}

		f.running.Wait()
		f.full = make(chan struct{})
		early := f.ask(t.Context(), "early")
		time.Sleep(DefaultTimeout / 2)
		late := f.ask(t.Context(), "late")
		wantAnswers(t, early(), func(string) string { return context.DeadlineExceeded.Error() }, "early")
		close(f.full)
		wantAnswers(t, late(), own, "late")
	})
}
