package conformance

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
)

// storeFlaws are mistakes of stores and their backends.
var storeFlaws = []flaw{
	{name: "a wild remaining time", fails: []string{"TryLockHeld"}, store: func(s *store) {
		acquire := s.acquire
		s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := acquire(ctx, req)
			if held := (*locker.HeldError)(nil); errors.As(err, &held) {
				held.Remaining = -time.Second
			}
			return g, err
		}
	}},
	{name: "cannot take odd keys", fails: []string{"KeysAreIndependent"}, store: func(s *store) {
		acquire := s.acquire
		s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			if strings.Contains(req.Key, "\x00") {
				return backend.Grant{}, locker.ErrUnavailable
			}
			return acquire(ctx, req)
		}
	}},
	{name: "leaves something of each lock that was kept", fails: []string{"NothingIsLeft"}, store: func(s *store) {
		left := s.left
		s.left = func() []string {
			left := left()
			for _, key := range s.keys() {
				if s.of(key).kept {
					left = append(left, key+":kept")
				}
			}
			return left
		}
	}},
	{name: "the counter has seven bits", fails: []string{"FenceGrows", "TokensAreRaised"},
		store: func(s *store) {
			first := uint64(time.Now().UnixMicro())
			s.tokens(func(fence uint64, _ grant) uint64 { return (fence - first) % 128 })
		}},
	{name: "an attempt that fails gives a token back", fails: []string{"FenceIsUnique"}, store: func(s *store) {
		var back, failed atomic.Uint64
		s.answers(func(err error) error {
			if errors.Is(err, locker.ErrUnavailable) {
				failed.Store(1)
			}
			return err
		})
		s.tokens(func(fence uint64, _ grant) uint64 { return fence - back.Add(failed.Swap(0)) })
	}},
	{name: "the counter expires with the lock", fails: []string{"FenceOutlivesTheLock"}, store: func(s *store) {
		base := uint64(0)
		s.tokens(func(fence uint64, before grant) uint64 {
			if before.expired() {
				base = fence - 1
			}
			return fence - base
		})
	}},
	{name: "a restart forgets the counter", fails: []string{"FenceSurvivesRestart"}, store: func(s *store) {
		base, restarts := uint64(0), 0
		s.tokens(func(fence uint64, _ grant) uint64 {
			if restarts != s.restarts {
				base, restarts = fence-1, s.restarts
			}
			return fence - base
		})
	}},
	{name: "has tokens, and does not state them", fails: []string{"FenceGrows"},
		store: func(s *store) { s.can.Tokens = false }},
	{name: "has labels, and does not state them", fails: []string{"LabelNamesTheHolder"},
		store: func(s *store) { s.can.Labels = false }},
	{name: "tells that others wait, and does not state it", fails: []string{"WantedTells"},
		store: func(s *store) { s.can.AnswersWanted = false }},
	{name: "grants several tokens, and does not state it", fails: []string{"NoMoreTokensThanAsked"},
		store: func(s *store) { s.can.Blocks = false }},
	{name: "states that it grants several tokens, and does not", fails: []string{"NoMoreTokensThanAsked"},
		store: (*store).grantsOneToken},
	{name: "states that it counts time, and waits until somebody looks", fails: []string{"ExpiryFrees"},
		store: func(s *store) {
			acquire, seen := s.acquire, map[string]bool{} // by token
			s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				g, first := s.of(req.Key), false
				s.with(func() {
					first = req.Key == "unseen" && g.expired() && !seen[g.Token]
					seen[g.Token] = true
				})
				if first {
					return backend.Grant{}, &locker.HeldError{}
				}
				return acquire(ctx, req)
			}
		}},
	{name: "expires early", fails: []string{"UntilIsConservative", "TTLIsKept"}, role: polls, store: func(s *store) {
		acquire := s.acquire
		s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			req.TTL = req.TTL * 8 / 10
			return acquire(ctx, req)
		}
	}},
	{name: "milliseconds are cut off", fails: []string{"TTLIsKept"}, store: func(s *store) {
		s.requests(func(req backend.Request) backend.Request {
			req.TTL = req.TTL.Truncate(time.Millisecond) - 200*time.Microsecond
			return req
		})
	}},
	{name: "TTLs above a second are rounded to the nearest one", fails: []string{"TTLIsKept"}, store: func(s *store) {
		s.requests(func(req backend.Request) backend.Request {
			if req.TTL > time.Second {
				req.TTL = req.TTL.Round(time.Second)
			}
			return req
		})
	}},
	{name: "expired locks are in the way until they are swept", fails: []string{"ExpiryFrees"}, role: polls,
		store: func(s *store) {
			acquire := s.acquire
			s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				if g := s.of(req.Key); g.expired() && g.Token != req.Token && time.Since(g.ends) < slack+slack/8 {
					return backend.Grant{}, &locker.HeldError{}
				}
				return acquire(ctx, req)
			}
		}},
	{name: "renews a few times only", fails: []string{"RenewalKeeps"}, store: func(s *store) {
		extend, renewals := s.extend, map[string]int{}
		s.extend = func(ctx context.Context, req backend.Request) error {
			tired := false
			s.with(func() {
				renewals[req.Token]++
				tired = renewals[req.Token] > 30 // ten TTLs with three renewals each
			})
			if tired {
				return locker.ErrUnavailable
			}
			return extend(ctx, req)
		}
	}},
	{name: "extend to less than half sets the end", fails: []string{"ExtendNeverShortens"}, store: func(s *store) {
		extend, ends := s.extend, map[string]time.Time{} // by token, if it was shortened
		s.extend = func(ctx context.Context, req backend.Request) error {
			g := s.of(req.Key)
			if err := extend(ctx, req); err != nil || g.Token != req.Token {
				return err
			}
			end := time.Now().Add(req.TTL)
			s.with(func() {
				if last, ok := ends[req.Token]; !ok && time.Until(g.ends) > 2*req.TTL || ok && last.Before(end) {
					ends[req.Token] = end
				}
			})
			time.AfterFunc(req.TTL, func() {
				over := false
				s.with(func() {
					last, ok := ends[req.Token]
					over = ok && !time.Now().Before(last)
				})
				if g := s.of(req.Key); over && g.Token == req.Token && !g.over {
					s.delete(req.Key)
				}
			})
			return nil
		}
	}},
	{name: "extend revives what has expired, and says not held", fails: []string{"ExtendNeverCreates"},
		store: func(s *store) {
			extend := s.extend
			s.extend = func(ctx context.Context, req backend.Request) error {
				err := extend(ctx, req)
				if g := s.of(req.Key); errors.Is(err, locker.ErrNotHeld) && g.Token == req.Token && g.expired() {
					s.land(req)
				}
				return err
			}
		}},
	{name: "extend calls the end of a TTL a fault", fails: []string{"ExtendTellsLoss"}, store: func(s *store) {
		extend := s.extend
		s.extend = func(ctx context.Context, req backend.Request) error {
			err := extend(ctx, req)
			if g := s.of(req.Key); errors.Is(err, locker.ErrNotHeld) && g.Token == req.Token && g.expired() {
				return locker.ErrUnavailable
			}
			return err
		}
	}},
	{name: "extend prolongs whatever is there", fails: []string{"EarlierOwnersTouchNothing"}, store: func(s *store) {
		extend := s.extend
		s.extend = func(ctx context.Context, req backend.Request) error {
			err := extend(ctx, req)
			if g := s.of(req.Key); errors.Is(err, locker.ErrNotHeld) && g.held() {
				g.TTL = req.TTL
				_ = extend(ctx, g.Request)
			}
			return err
		}
	}},
	{name: "the label is the owner", fails: []string{"LabelIsNotTheOwner"}, client: calls(func(next lockCall) lockCall {
		return func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
			return next(ctx, key, append([]locker.Option{locker.Label("")}, opts...)...)
		}
	}),
		store: func(s *store) {
			s.requests(func(req backend.Request) backend.Request {
				if g := s.of(req.Key); g.held() && g.Label == req.Label && req.Label != "" {
					req.Token = g.Token
				}
				return req
			})
		}},
	{name: "extend of a lock that was kept says nothing", fails: []string{"KeepIsForNobody"}, store: func(s *store) {
		extend := s.extend
		s.extend = func(ctx context.Context, req backend.Request) error {
			err := extend(ctx, req)
			if g := s.of(req.Key); errors.Is(err, locker.ErrNotHeld) && g.Token == req.Token && g.kept {
				return nil
			}
			return err
		}
	}},
	{name: "keeps a lock for less than it should", fails: []string{"MinHoldKeeps", "KeepIsForNobody"},
		store: func(s *store) {
			release := s.release
			s.release = func(ctx context.Context, req backend.Request) error {
				req.Keep = req.Keep * 8 / 10
				return release(ctx, req)
			}
		}},
	{name: "takes its own lock for another's", fails: []string{"AcquireTwiceIsGrantedTwice"}, store: forgetsOwner},

	{name: "a lock that expires has one token, whatever was granted", fails: []string{"FenceBlocksDoNotOverlap"},
		store: func(s *store) {
			unused := uint64(0)
			s.attempts(func(next acquireCall) acquireCall {
				return func(ctx context.Context, req backend.Request) (backend.Grant, error) {
					before := s.of(req.Key)
					g, err := next(ctx, req)
					s.with(func() {
						if err == nil && before.expired() {
							unused += uint64(max(1, before.Fences) - 1)
						}
						g.Fence -= unused
					})
					return g, err
				}
			})
		}},
	{name: "prefers clients with many callers", fails: []string{"CallersShareWithOthers"}, store: func(s *store) {
		queue, busy := s.queue, time.Time{}
		s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			for wait := req.Fences <= 1; wait; {
				s.with(func() { wait = time.Since(busy) < 200*time.Millisecond })
				time.Sleep(10 * time.Millisecond)
			}
			s.with(func() {
				if req.Fences > 1 {
					busy = time.Now()
				}
			})
			return queue(ctx, req)
		}
	}},
	{name: "always grants as many tokens as it can", fails: []string{"NoMoreTokensThanAsked"},
		store: func(s *store) {
			s.attempts(func(next acquireCall) acquireCall {
				return func(ctx context.Context, req backend.Request) (backend.Grant, error) {
					req.Fences = backend.MaxFences
					return next(ctx, req)
				}
			})
		}},
	{name: "verifies the last token of a grant", fails: []string{"FirstTokenActsForAll"}, store: func(s *store) {
		verify := s.verify
		s.verify = func(ctx context.Context, req backend.Request) error {
			if req.Fences > 1 {
				return &locker.NotHeldError{Reason: locker.LostSuperseded}
			}
			return verify(ctx, req)
		}
	}},

	{name: "attempts whose caller has left are not undone", fails: []string{"CancelledAttemptsLeaveNothing"},
		store: func(s *store) {
			s.abandoned(func(req backend.Request, hung bool) {
				if !hung {
					s.land(req)
				}
			})
		}},
	{name: "attempts that land after a hang are not undone", fails: []string{"HungStoreIsBounded"},
		store: func(s *store) {
			s.abandoned(func(req backend.Request, hung bool) {
				if hung {
					s.land(req)
				}
			})
		}},
	{name: "sets the expiry in a second step, and undoes that until it thinks that it has expired",
		fails: []string{"CancelledAcquireExpires"}, store: func(s *store) {
			s.abandoned(func(req backend.Request, _ bool) {
				const undone = 50 * time.Millisecond
				ttl := req.TTL
				req.TTL = time.Hour
				s.land(req)
				if time.Sleep(undone); ttl > undone {
					_ = s.release(context.Background(), req)
				}
			})
		}},
	{name: "release leaves with its caller", fails: []string{"CancelledReleaseReleases"}, store: func(s *store) {
		release := s.release
		s.release = func(ctx context.Context, req backend.Request) error {
			if !s.isHung() && !s.isDown() {
				time.Sleep(latency / 2)
				if ctx.Err() != nil {
					return errSilent
				}
			}
			return release(ctx, req)
		}
	}},
	{name: "notices contexts a second late", fails: []string{"ContextEndIsPrompt"}, store: func(s *store) {
		s.answers(func(err error) error {
			if errors.Is(err, errSilent) && s.isHung() {
				time.Sleep(time.Second)
			}
			return err
		})
	}},
	{name: "unreachable is not held", fails: []string{"NoAnswerIsUnavailable"}, store: func(s *store) {
		extend := s.extend
		s.extend = func(ctx context.Context, req backend.Request) error {
			return instead(errDown, locker.ErrNotHeld)(extend(ctx, req))
		}
	}},
	{name: "many failures are final", fails: []string{"RecoversAfterOutage"}, store: func(s *store) {
		acquire, failures := s.acquire, 0
		s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := acquire(ctx, req)
			s.with(func() {
				switch {
				case failures > 5:
					g, err = backend.Grant{}, errDown
				case errors.Is(err, errDown):
					failures++
				case err == nil:
					failures = 0
				}
			})
			return g, err
		}
	}},
	{name: "release gives up", fails: []string{"ReleaseGoesOn"}, store: func(s *store) {
		release := s.release
		s.release = func(ctx context.Context, req backend.Request) error {
			if s.isDown() {
				return errDown
			}
			return release(ctx, req)
		}
	}},
	{name: "a foreign value is a lock", fails: []string{"ForeignKeyIsRefused"}, role: polls, store: func(s *store) {
		s.answers(instead(locker.ErrForeignKey, &locker.HeldError{}))
	}},
	{name: "close does nothing", fails: []string{"CloseIsFinal"},
		role: func(c *client) backend.Backend { return neverClosed{queuer{c}} }},

	{name: "says that it waits and does not", fails: []string{"QueueTellsThatItWaits"}, store: func(s *store) {
		queue := s.queue
		s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			free := !s.of(req.Key).held()
			g, err := queue(ctx, req)
			if err == nil && free {
				waitOf(ctx).Held(&locker.HeldError{Label: req.Label})
			}
			return g, err
		}
	}},
	{name: "a waiter waits for the TTL that it saw first", fails: []string{"ExpiryFrees"}, store: func(s *store) {
		var mu sync.Mutex
		owners := map[string]string{} // by key; empty after a release
		owned := func(req backend.Request, token string) (before string) {
			mu.Lock()
			defer mu.Unlock()
			before, owners[req.Key] = owners[req.Key], token
			return before
		}
		s.attempts(func(next acquireCall) acquireCall {
			return func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				first := s.of(req.Key)
				g, err := next(ctx, req)
				if err != nil {
					return g, err
				}
				if before := owned(req, req.Token); before != "" && first.held() && first.Token != before {
					<-ctx.Done()
				}
				return g, err
			}
		})
		release := s.release
		s.release = func(ctx context.Context, req backend.Request) error {
			owned(req, "")
			return release(ctx, req)
		}
	}},
	{name: "a waiter of a closed client finds the lock held", store: func(s *store) {
		queue := s.queue
		s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := queue(ctx, req)
			if errors.Is(err, locker.ErrClosed) {
				err = &locker.HeldError{}
			}
			return g, err
		}
	}, fails: []string{"CloseEndsWaiting", "DrainEndsWaiting", "QueueSaysWhatItSawLast"}},
	{name: "an outage ends no wait", fails: []string{"QueueSaysWhatItSawLast"}, store: func(s *store) {
		queue := s.queue
		s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			over := make(chan struct{})
			defer close(over)
			go func() {
				for {
					select {
					case <-time.After(100 * time.Millisecond):
					case <-over:
						return
					}
					if s.isDown() {
						_, _ = waitOf(ctx).Failed(ctx, time.Now(), errDown)
					}
				}
			}()
			return queue(ctx, req)
		}
	}},
	{name: "states an order but has none", fails: []string{"ServedInOrder"}, store: func(s *store) {
		queue, slow := s.queue, false
		s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			if s.of(req.Key).held() {
				waitOf(ctx).Held(&locker.HeldError{Label: s.of(req.Key).Label})
				s.with(func() { slow = !slow })
				if slow { // others that come later are in the queue before
					time.Sleep(5 * time.Millisecond)
				}
			}
			return queue(ctx, req)
		}
	}},
	{name: "a waiter that has left is served", fails: []string{"LeavingWaiterStallsNobody"}, store: func(s *store) {
		queue := s.queue
		s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			if !s.of(req.Key).held() {
				return queue(ctx, req)
			}
			served, left := make(chan backend.Grant), make(chan error, 1)
			go func() {
				g, err := queue(context.WithoutCancel(ctx), req)
				if err != nil {
					left <- err
					return
				}
				select {
				case served <- g:
				case <-ctx.Done():
					time.Sleep(2*slack + slack/4)
					_ = s.release(context.WithoutCancel(ctx), req)
				}
			}()
			select {
			case g := <-served:
				return g, nil
			case err := <-left:
				return backend.Grant{}, err
			case <-ctx.Done():
				return backend.Grant{}, &locker.HeldError{Label: s.of(req.Key).Label}
			}
		}
	}},
	{name: "relies on messages", fails: []string{"LostMessagesDelay"}, store: func(s *store) {
		queue := s.queue
		s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			waits := s.of(req.Key).held()
			g, err := queue(ctx, req)
			for err == nil && waits && s.isDeaf() {
				if time.Sleep(10 * time.Millisecond); ctx.Err() != nil {
					_ = s.release(context.WithoutCancel(ctx), req)
					return backend.Grant{}, &locker.HeldError{}
				}
			}
			return g, err
		}
	}},
	{name: "never reports that its subscription is active", fails: []string{"NotifyTells"}, role: notified,
		store: func(s *store) {
			notify := s.notify
			s.notify = func(key string, wake func()) (live func() bool, stop func()) {
				_, stop = notify(key, wake)
				return func() bool { return false }, stop
			}
		}},
	{name: "notifies after stop", fails: []string{"NotifyStops"}, role: notified, store: func(s *store) {
		notify := s.notify
		s.notify = func(key string, wake func()) (live func() bool, stop func()) {
			live, _ = notify(key, wake)
			return live, func() {}
		}
	}},
	{name: "reports no loss", fails: []string{"NotifyLossTells"}, role: warned, store: func(s *store) {
		s.notifyLoss = func(backend.Request, func(err error)) (stop func()) { return func() {} }
	}},
	{name: "tells nobody that others wait", fails: []string{"WantedTells"}, store: func(s *store) {
		s.requests(func(req backend.Request) backend.Request {
			req.Wanted = nil
			return req
		})
	}},
	{name: "waiters that have left count", fails: []string{"WantedIsTrue"}, store: func(s *store) {
		extend, queue, waited := s.extend, s.queue, map[string]bool{}
		s.queue = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
			held := s.of(req.Key).held()
			s.with(func() { waited[req.Key] = waited[req.Key] || held })
			return queue(ctx, req)
		}
		s.extend = func(ctx context.Context, req backend.Request) error {
			marked := false
			if s.with(func() { marked = waited[req.Key] }); marked && req.Wanted != nil {
				req.Wanted()
			}
			return extend(ctx, req)
		}
	}},
	{name: "tells of changes after stop", fails: []string{"WatchTells"}, store: func(s *store) {
		watch := s.watch
		s.watch = func(key string, changed func()) (stop func(), err error) {
			_, err = watch(key, changed)
			return func() {}, err
		}
	}},
	{name: "an outage ends the watch", fails: []string{"WatchOutlivesOutages"}, store: func(s *store) {
		watch := s.watch
		s.watch = func(key string, changed func()) (stop func(), err error) {
			return watch(key, func() {
				outages := 0
				if s.with(func() { outages = s.outages }); outages == 0 {
					changed()
				}
			})
		}
	}},
	{name: "tokens are set to the number, but for those near by", fails: []string{"TokensAreRaised"},
		store: func(s *store) {
			last, offset := setsTokens(s)
			s.raise = func(_ context.Context, past uint64) error {
				s.with(func() {
					if past > *last || *last-past > 1<<20 {
						*offset += past - *last
					}
				})
				return nil
			}
		}},
	{name: "raising ends locks", fails: []string{"TokensAreRaised"}, store: func(s *store) {
		raise := s.raise
		s.raise = func(ctx context.Context, past uint64) error {
			s.delete("held")
			return raise(ctx, past)
		}
	}},
	{name: "tokens are raised in two steps", fails: []string{"RaisingIsOneStep"}, store: func(s *store) {
		last, offset := setsTokens(s)
		s.raise = func(_ context.Context, past uint64) error {
			var read uint64
			s.with(func() { read = *last })
			time.Sleep(20 * time.Millisecond)
			s.with(func() {
				if read < past {
					*offset += past - *last
				}
			})
			return nil
		}
	}},
	{name: "shows a kept lock as held", fails: []string{"InspectionTells"}, store: func(s *store) {
		inspected := s.inspect
		s.inspect = func(ctx context.Context, key string) (inspect.Inspection, error) {
			i, err := inspected(ctx, key)
			if i.State == inspect.Kept {
				i.State = inspect.Held
			}
			return i, err
		}
	}},
	{name: "the second page of a listing is lost", fails: []string{"ListingIsComplete"}, store: func(s *store) {
		s.lists(func(n int, _ *inspect.Listed) bool { return n/100 != 1 })
	}},
	{name: "a listing shows a lock under its tag", fails: []string{"ListingIsComplete"}, store: func(s *store) {
		s.lists(func(_ int, l *inspect.Listed) bool {
			l.Key = strings.Trim(l.Key, "{}")
			return true
		})
	}},
	{name: "a listing shows free locks as held", fails: []string{"ListingIsComplete"}, store: func(s *store) {
		list := s.list
		s.list = func(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
			return func(yield func(inspect.Listed, error) bool) {
				for _, key := range s.keys() {
					if g := s.of(key); g.over && !g.kept && strings.HasPrefix(key, prefix) {
						free := inspect.Listed{Key: key, At: time.Now(), Inspection: inspect.Inspection{State: inspect.Held}}
						if !yield(free, nil) {
							return
						}
					}
				}
				list(ctx, prefix)(yield)
			}
		}
	}},
	{name: "a listing looks complete when its context has ended", fails: []string{"ListingEnds"},
		client: func(l *flawedLocker) { l.Locker = quietLister{l.Locker} }},
	{name: "makes up a label", fails: []string{"LabelNamesTheHolder"}, store: func(s *store) {
		s.requests(func(req backend.Request) backend.Request {
			if req.Label == "" {
				req.Label = "somebody"
			}
			return req
		})
	}},
	{name: "takes from anybody by force", fails: []string{"ForceReleaseTakes"}, store: func(s *store) {
		force := s.forceRelease
		s.forceRelease = func(ctx context.Context, key, _ string) (inspect.Inspection, error) { return force(ctx, key, "") }
	}},
	{name: "verifies whoever holds it", fails: []string{"VerifyProves"}, store: func(s *store) {
		verify := s.verify
		s.verify = func(ctx context.Context, req backend.Request) error {
			err := verify(ctx, req)
			if errors.Is(err, locker.ErrNotHeld) && s.of(req.Key).held() {
				return nil
			}
			return err
		}
	}},
	{name: "verifies by an extension", fails: []string{"VerifyChangesNothing"},
		store: func(s *store) { s.verify = s.extend }},
}

// knownBugs are bugs that lock libraries and hand-made locks have shipped.
var knownBugs = []flaw{
	{name: "constant owner value", fails: []string{"MutualExclusion", "UnlockSparesSuccessor"}, broad: true, role: polls,
		store: constantOwner},
	{name: "constant owner value, set if there is none",
		fails: []string{"UnlockSparesSuccessor", "EarlierOwnersTouchNothing"}, broad: true, role: polls,
		store: func(s *store) {
			forgetsOwner(s)
			constantOwner(s)
		}},
	{name: "DEL without compare", fails: []string{"UnlockSparesSuccessor"}, broad: true, store: func(s *store) {
		release := s.release
		s.release = func(ctx context.Context, req backend.Request) error {
			if g := s.of(req.Key); g.held() {
				req.Token = g.Token
			}
			return release(ctx, req)
		}
	}},
	// A Locker cannot be made to release at the very end of its TTL.
	{name: "GET, compare, DEL", fails: []string{"ReleaseIsOneStep"}, store: func(s *store) {
		release := s.release
		s.release = func(ctx context.Context, req backend.Request) error {
			if g := s.of(req.Key); g.Token != req.Token || !g.held() {
				return release(ctx, req)
			}
			done := make(chan error, 1)
			go func() {
				time.Sleep(5 * latency)
				if g := s.of(req.Key); g.held() {
					req.Token = g.Token
				}
				done <- release(context.WithoutCancel(ctx), req)
			}()
			select {
			case err := <-done:
				return err
			case <-ctx.Done():
				return errSilent
			}
		}
	}},
	{name: "SETNX, then EXPIRE", fails: []string{"CancelledAcquireExpires", "CancelledAttemptsLeaveNothing"},
		broad: true, store: func(s *store) {
			s.abandoned(func(req backend.Request, _ bool) {
				req.TTL = time.Hour
				s.land(req)
			})
		}},
	{name: "no EXPIRE", fails: []string{"ExpiryFrees"}, broad: true, store: func(s *store) {
		s.requests(func(req backend.Request) backend.Request {
			req.TTL = time.Hour
			return req
		})
	}},
	{name: "errors swallowed as held", fails: []string{"NoAnswerIsUnavailable", "HungStoreIsBounded"}, broad: true,
		store: func(s *store) { s.answers(instead(locker.ErrUnavailable, &locker.HeldError{})) }},
	{name: "context ignored", fails: []string{"ContextEndIsPrompt", "HungStoreIsBounded"}, broad: true, role: polls,
		store: func(s *store) {
			acquire, extend := s.acquire, s.extend
			s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				return acquire(context.WithoutCancel(ctx), req)
			}
			s.extend = func(ctx context.Context, req backend.Request) error {
				return extend(context.WithoutCancel(ctx), req)
			}
		}},
	{name: "no clean-up when the context ends", broad: true,
		fails: []string{"CancelledAttemptsLeaveNothing", "HungStoreIsBounded"},
		store: func(s *store) { s.abandoned(func(req backend.Request, _ bool) { s.land(req) }) }},
	{name: "nil reply of SET NX taken for success", fails: []string{"MutualExclusion", "TryLockHeld"}, broad: true,
		role: polls, store: func(s *store) { s.answers(instead(locker.ErrHeld, nil)) }},
	{name: "0 of the release script taken for success", fails: []string{"UnlockSparesSuccessor"}, broad: true,
		store: func(s *store) {
			release := s.release
			s.release = func(ctx context.Context, req backend.Request) error {
				return instead(locker.ErrNotHeld, nil)(release(ctx, req))
			}
		}},
	// A Locker cannot be made to send a request twice.
	{name: "resend of an acquisition that is not idempotent", broad: true,
		fails: []string{"AcquireTwiceIsGrantedTwice", "LostReplyIsNoAnswer"}, store: func(s *store) {
			forgetsOwner(s)
			s.answers(instead(errLost, &locker.HeldError{}))
		}},
	{name: "resend of a release that is not idempotent", fails: []string{"LostReplyIsNoAnswer"}, store: func(s *store) {
		release := s.release
		s.release = func(ctx context.Context, req backend.Request) error {
			err := release(ctx, req)
			if errors.Is(err, errLost) {
				err = release(ctx, req)
			}
			return err
		}
	}},
}

// forgetsOwner takes a lock that the caller has for that of another.
func forgetsOwner(s *store) {
	acquire := s.acquire
	s.acquire = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
		if g := s.of(req.Key); g.held() && g.Token == req.Token {
			return backend.Grant{}, &locker.HeldError{}
		}
		return acquire(ctx, req)
	}
}

// constantOwner gives all owners the same token, as a program that stores "1", "locked" or its own name.
func constantOwner(s *store) {
	s.requests(func(req backend.Request) backend.Request {
		req.Token = "locked"
		return req
	})
}

// setsTokens adds offset to all tokens that are granted. last is the last one. Both are guarded by the mutex of s.
func setsTokens(s *store) (last, offset *uint64) {
	last, offset = new(uint64), new(uint64)
	s.tokens(func(fence uint64, _ grant) uint64 {
		*last = fence + *offset
		return *last
	})
	return last, offset
}
