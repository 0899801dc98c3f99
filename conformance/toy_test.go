package conformance

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

// toy is a store of locks into which flaws can be planted. It answers after a short delay, like a server.
type toy struct {
	mu      sync.Mutex
	locks   map[string]toyLock
	line    map[string][]string // tokens of waiters, by key
	wakes   map[string][]*func()
	fence   uint64
	changes int           // number of releases, for notifications
	hung    chan struct{} // closed by resume; nil while the store answers
	down    bool
	lose    bool            // the next reply
	deaf    bool            // waiters are not notified
	outages int             // requests in a row that failed
	husks   map[string]bool // leftovers of locks, by key
	extends map[string]int  // by token

	grantsAll, forgetsOwner, forgetsFence, fenceExpires, expiryIgnored, refusesOddKeys,
	wildRemaining bool
	lateIgnored, cancelIgnored, hungIgnored, checksThenSets, ignoresContext, late, gated, breaks,
	retries bool
	shortens, setsEnd, extendCreates, extendAny, extendsShort, createsSecretly, revivesSecretly, expiredIsFault,
	prolongsOthers bool
	releaseAny, deletesSecretly, neverFrees, ignoresKeep, keepsOwner, releaseLeaves, giveUpRelease, twoSteps,
	expiresLater bool
	foreignHeld, foreignGone,
	staysOpen bool
	waitingAlways, waitingTwice, deafToExpiry, lifo, queueLate, closingIsHeld, staysInLine, sentLate,
	trustsNews bool
	neverTells, neverLive,
	neverStops bool
	tellsTokens, forcesAny, forcesNothing,
	seesHeldOnly bool
	remembersHeld, sweeps, tires, undoesWithinTTL, leavesHusks, leavesKept, fenceWraps, fenceGivenBack, fenceInMemory,
	keepsShort bool

	seconds bool // it counts in whole seconds, rounded up; no flaw

	ttl                               func(time.Duration) time.Duration
	acquireErr, extendErr, releaseErr func(error) error
}

type toyLock struct {
	token   string
	fence   uint64
	expires time.Time
	foreign bool
	kept    bool // by nobody
}

func newToy() *toy {
	return &toy{locks: map[string]toyLock{}, line: map[string][]string{}, wakes: map[string][]*func(){},
		husks: map[string]bool{}, extends: map[string]int{}}
}

func (s *toy) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *toy) delete(key string) { s.with(func() { delete(s.locks, key) }) }

func (s *toy) foreign(key string) (intact func() bool) {
	foreign := toyLock{expires: time.Now().Add(time.Hour), foreign: true}
	s.with(func() { s.locks[key] = foreign })
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.locks[key] == foreign
	}
}

func (s *toy) hang() func() {
	hung := make(chan struct{})
	s.with(func() { s.hung = hung })
	return func() {
		s.with(func() { s.hung = nil })
		close(hung)
	}
}

func (s *toy) fail() func() {
	s.with(func() { s.down = true })
	return func() { s.with(func() { s.down = false }) }
}

// restart loses the locks.
func (s *toy) restart() {
	s.with(func() {
		clear(s.locks)
		if s.fenceInMemory {
			s.fence = 0
		}
	})
}

func (s *toy) left() (left []string) {
	s.with(func() {
		for key := range s.locks {
			if _, ok := s.held(key); ok {
				left = append(left, key)
			}
		}
		for key, line := range s.line {
			if len(line) > 0 {
				left = append(left, key+":line")
			}
		}
		left = slices.AppendSeq(left, maps.Keys(s.husks))
	})
	return left
}

// unavailable is a failure, and what kind of.
type unavailable string

func (u unavailable) Error() string        { return string(u) }
func (u unavailable) Is(target error) bool { return target == locker.ErrUnavailable }

const (
	refused  = unavailable("connection refused")
	silent   = unavailable("no answer yet")
	lostLink = unavailable("connection lost")
)

// answer waits until the store has executed do. If ctx ends before that, or if the reply is lost, the store executes
// undo after do.
func (s *toy) answer(ctx context.Context, do func() (locker.Grant, error), undo func()) (locker.Grant, error) {
	g, err := s.request(ctx, do, undo)
	if err == lostLink && s.retries {
		g, err = s.request(ctx, do, undo)
	}
	return g, err
}

func (s *toy) request(ctx context.Context, do func() (locker.Grant, error), undo func()) (locker.Grant, error) {
	s.mu.Lock()
	hung, down, lost := s.hung, s.down, s.lose
	s.lose = s.lose && down
	if down {
		s.outages++
	} else if s.outages <= 5 {
		s.outages = 0
	}
	down = down || s.breaks && s.outages > 5
	s.mu.Unlock()
	if down {
		time.Sleep(100 * time.Microsecond)
		return locker.Grant{}, refused
	}
	caller := ctx
	if s.ignoresContext {
		ctx = context.WithoutCancel(ctx)
	}
	type result struct {
		g   locker.Grant
		err error
	}
	done := make(chan result, 1)
	go func() {
		if hung != nil {
			<-hung
		}
		time.Sleep(100 * time.Microsecond)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.gated && caller.Err() != nil {
			done <- result{locker.Grant{}, silent}
			return
		}
		g, err := do()
		if lost {
			g, err = locker.Grant{}, lostLink
		}
		ignored := s.lateIgnored || hung != nil && s.hungIgnored || hung == nil && !lost && s.cancelIgnored
		if (ctx.Err() != nil || lost && !s.retries) && undo != nil && !ignored {
			undo()
			if err == nil { // the caller may still look
				g, err = locker.Grant{}, silent
			}
		}
		done <- result{g, err}
	}()
	select {
	case r := <-done:
		return r.g, r.err
	case <-ctx.Done():
		if s.late {
			time.Sleep(time.Second)
		}
		return locker.Grant{}, silent
	}
}

func (s *toy) held(key string) (toyLock, bool) {
	l, ok := s.locks[key]
	expired := ok && !s.expiryIgnored && !time.Now().Before(l.expires)
	if expired && s.fenceExpires {
		s.fence = 0
	}
	return l, ok && !expired
}

func (s *toy) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if s.refusesOddKeys && strings.ContainsAny(req.Key, "{}\x00") {
		return locker.Grant{}, locker.ErrUnavailable
	}
	if s.checksThenSets {
		if _, err := s.answer(ctx, func() (locker.Grant, error) { return locker.Grant{}, s.check(req) },
			nil); err != nil {
			return locker.Grant{}, err
		}
	}
	g, err := s.answer(ctx, func() (locker.Grant, error) {
		if s.checksThenSets {
			delete(s.locks, req.Key)
		}
		if line := s.line[req.Key]; len(line) > 0 {
			return locker.Grant{}, &locker.HeldError{}
		}
		return s.take(req)
	}, func() { s.drop(req) })
	if s.expiresLater && err == nil {
		started := time.Now()
		_, err = s.answer(ctx, func() (locker.Grant, error) {
			if l, ok := s.locks[req.Key]; ok && l.token == req.Token && ctx.Err() == nil {
				l.expires = time.Now().Add(req.TTL)
				s.locks[req.Key] = l
			}
			return g, nil
		}, nil)
		if err != nil && s.undoesWithinTTL {
			time.AfterFunc(50*time.Millisecond, func() {
				if time.Since(started) < req.TTL { // otherwise it has expired
					s.with(func() { s.drop(req) })
				}
			})
		}
	}
	if err != nil && s.acquireErr != nil {
		err = s.acquireErr(err)
	}
	return g, err
}

// after returns the end of a lock that is set for d.
func (s *toy) after(d time.Duration) time.Time {
	end := time.Now().Add(d)
	if whole := end.Truncate(time.Second); s.seconds && whole.Before(end) {
		return whole.Add(time.Second)
	}
	return end
}

// check reports whether take would find the lock free.
func (s *toy) check(req locker.Request) error {
	switch l, ok := s.held(req.Key); {
	case ok && l.foreign:
		return locker.ErrForeignKey
	case ok && l.token != req.Token:
		return &locker.HeldError{}
	}
	return nil
}

// sweepsAfter is the flaw's delay until an expired lock is removed.
const sweepsAfter = slack + slack/8

// take grants the lock if it is free. The caller of take, and of the methods below, holds mu.
func (s *toy) take(req locker.Request) (locker.Grant, error) {
	l, ok := s.held(req.Key)
	if _, stored := s.locks[req.Key]; stored && !ok && s.sweeps && l.token != "" {
		ok = time.Since(l.expires) < sweepsAfter
	}
	switch {
	case ok && l.foreign && s.foreignGone:
	case ok && l.foreign && !s.foreignHeld:
		return locker.Grant{}, locker.ErrForeignKey
	case ok && l.token == req.Token && !s.forgetsOwner:
		return locker.Grant{Fence: l.fence}, nil
	case ok && s.wildRemaining:
		return locker.Grant{}, &locker.HeldError{Remaining: -time.Second}
	case ok && !s.grantsAll:
		return locker.Grant{}, &locker.HeldError{Remaining: max(0, time.Until(l.expires))}
	}
	s.fence++
	if s.forgetsFence && s.fence > 5 {
		s.fence = 1
	}
	if s.fenceWraps {
		s.fence %= 128
	}
	ttl := req.TTL
	if s.ttl != nil {
		ttl = s.ttl(ttl)
	}
	if s.expiresLater {
		ttl = time.Hour
	}
	s.locks[req.Key] = toyLock{req.Token, s.fence, s.after(ttl), false, false}
	return locker.Grant{Fence: s.fence}, nil
}

func (s *toy) drop(req locker.Request) {
	if s.fenceGivenBack {
		s.fence--
	}
	if s.locks[req.Key].token == req.Token {
		delete(s.locks, req.Key)
		s.tell(req.Key)
	}
}

func (s *toy) Extend(ctx context.Context, req locker.Request) error {
	_, err := s.answer(ctx, func() (locker.Grant, error) {
		l, ok := s.held(req.Key)
		s.extends[req.Token]++
		switch {
		case s.tires && s.extends[req.Token] > 30: // ten TTLs with three renewals each
			return locker.Grant{}, locker.ErrUnavailable
		case ok && l.token == req.Token || ok && s.extendAny || !ok && s.extendCreates:
		case ok && s.prolongsOthers && l.token != "":
			l.expires = time.Now().Add(req.TTL)
			s.locks[req.Key] = l
			return locker.Grant{}, locker.ErrNotHeld
		default:
			if s.expiredIsFault && !ok && l.token == req.Token {
				return locker.Grant{}, locker.ErrUnavailable
			}
			if !ok && (s.createsSecretly || s.revivesSecretly && l.token == req.Token) {
				s.locks[req.Key] = toyLock{req.Token, req.Fence, time.Now().Add(req.TTL), false, false}
			}
			return locker.Grant{}, locker.ErrNotHeld
		}
		end := s.after(req.TTL)
		switch {
		case s.shortens:
			end = time.Now().Add(req.TTL / 4)
		case s.extendsShort:
			end = time.Now().Add(req.TTL * 8 / 10)
			fallthrough
		default:
			if end.Before(l.expires) && !s.setsEnd {
				end = l.expires
			}
		}
		s.locks[req.Key] = toyLock{req.Token, l.fence, end, false, false}
		return locker.Grant{}, nil
	}, nil)
	if err != nil && s.extendErr != nil {
		err = s.extendErr(err)
	}
	return err
}

func (s *toy) Release(ctx context.Context, req locker.Request) error {
	err := s.release(ctx, req)
	if err == refused && !s.giveUpRelease {
		go func() {
			for n := 0; n < 100 && s.release(context.Background(), req) == refused; n++ {
				time.Sleep(10 * time.Millisecond)
			}
		}()
	}
	if err != nil && s.releaseErr != nil {
		err = s.releaseErr(err)
	}
	return err
}

func (s *toy) release(ctx context.Context, req locker.Request) error {
	answers := false
	s.with(func() { answers = s.hung == nil })
	own := func() (locker.Grant, error) {
		if l, ok := s.held(req.Key); s.deletesSecretly && ok && l.token != req.Token && l.token != "" {
			delete(s.locks, req.Key)
		}
		if l, ok := s.held(req.Key); !ok || l.token != req.Token && !s.releaseAny {
			return locker.Grant{}, locker.ErrNotHeld
		}
		return locker.Grant{}, nil
	}
	free := func() (locker.Grant, error) {
		switch l := s.locks[req.Key]; {
		case s.releaseLeaves && answers && ctx.Err() != nil:
			return locker.Grant{}, silent
		case req.Keep > 0 && s.keepsOwner:
			l.expires, l.kept = time.Now().Add(req.Keep), true
			s.locks[req.Key] = l
		case req.Keep > 0 && !s.ignoresKeep:
			keep := req.Keep
			if s.keepsShort {
				keep = keep * 8 / 10
			}
			s.locks[req.Key] = toyLock{"", l.fence, s.after(keep), false, true}
			if s.leavesKept {
				s.husks[req.Key] = true
			}
		case !s.neverFrees:
			delete(s.locks, req.Key)
			if s.leavesHusks {
				s.husks[req.Key] = true
			}
		}
		s.tell(req.Key)
		return locker.Grant{}, nil
	}
	if s.twoSteps {
		return s.inTwoSteps(ctx, own, free)
	}
	_, err := s.answer(ctx, func() (locker.Grant, error) {
		if g, err := own(); err != nil {
			return g, err
		}
		return free()
	}, nil)
	return err
}

// inTwoSteps reads, waits for the answer, and acts on it, although the state may have changed.
func (s *toy) inTwoSteps(ctx context.Context, ask, act func() (locker.Grant, error)) error {
	insist := func(do func() (locker.Grant, error)) error {
		for {
			if _, err := s.answer(context.Background(), do, nil); err != lostLink {
				return err
			}
		}
	}
	done := make(chan error, 1)
	go func() {
		err := insist(ask)
		if err == nil {
			time.Sleep(500 * time.Microsecond)
			err = insist(act)
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return silent
	}
}

// tell notifies the waiters.
func (s *toy) tell(key string) {
	if s.deaf {
		return
	}
	s.changes++
	if !s.neverTells {
		for _, wake := range s.wakes[key] {
			go (*wake)()
		}
	}
}

// toyBackend is the Backend of one process.
type toyBackend struct {
	*toy
	closed atomic.Bool
	held   sync.Map // time of the last refusal, by key
}

func (b *toyBackend) Acquire(ctx context.Context, req locker.Request) (locker.Grant, error) {
	if b.closed.Load() {
		return locker.Grant{}, locker.ErrClosed
	}
	if at, ok := b.held.Load(req.Key); ok && b.remembersHeld && time.Since(at.(time.Time)) < 50*time.Millisecond {
		return locker.Grant{}, &locker.HeldError{}
	}
	g, err := b.toy.Acquire(ctx, req)
	if errors.Is(err, locker.ErrHeld) {
		b.held.Store(req.Key, time.Now())
	}
	return g, err
}

func (b *toyBackend) Close() error {
	b.closed.Store(!b.staysOpen)
	return nil
}

// toyQueuer polls from its position in the queue.
type toyQueuer struct{ *toyBackend }

func (b toyQueuer) Queue(ctx context.Context, req locker.Request) (locker.Grant, error) {
	s := b.toy
	var left time.Duration
	for news, waited := -1, 0; ; waited++ {
		sent := time.Now()
		g, err := s.answer(ctx, func() (locker.Grant, error) { return s.look(req, &news, waited == 0) },
			func() { s.forget(req) })
		var e *locker.HeldError
		isHeld := errors.As(err, &e)
		if isHeld {
			left = e.Remaining
		}
		if isHeld && waited == 0 || isHeld && waited == 1 && s.waitingTwice || err == nil && waited == 0 &&
			s.waitingAlways {
			req.Waiting(left)
		}
		if err == nil {
			if g.Sent = sent; s.sentLate && waited > 0 {
				time.Sleep(100 * time.Millisecond)
				g.Sent = time.Now()
			}
			return g, nil
		}
		if s.queueLate && waited > 0 && ctx.Err() != nil {
			time.Sleep(time.Second)
		}
		if !isHeld {
			b.leave(req)
			if err == silent && waited > 0 {
				err = &locker.HeldError{Remaining: left}
			}
			return g, err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			if s.queueLate {
				time.Sleep(time.Second)
			}
			b.leave(req)
			return g, &locker.HeldError{Remaining: left}
		case <-req.Closing:
			b.leave(req)
			if s.closingIsHeld {
				return g, &locker.HeldError{}
			}
			return g, locker.ErrClosed
		}
	}
}

// look joins the queue. It takes the lock if the lock is free and the caller is first in the queue. news is the last
// notification that the caller has seen.
func (s *toy) look(req locker.Request, news *int, first bool) (locker.Grant, error) {
	line := s.line[req.Key]
	if !slices.Contains(line, req.Token) {
		if s.lifo {
			line = append([]string{req.Token}, line...)
		} else {
			line = append(slices.Clone(line), req.Token)
		}
		s.line[req.Key] = line
	}
	l, present := s.locks[req.Key]
	over := present && !time.Now().Before(l.expires)
	told := *news != s.changes || first
	*news = s.changes
	if line[0] != req.Token || over && s.deafToExpiry || !over && !told && s.trustsNews {
		return locker.Grant{}, &locker.HeldError{Remaining: max(0, time.Until(l.expires))}
	}
	g, err := s.take(req)
	if err == nil {
		s.line[req.Key] = line[1:]
	}
	return g, err
}

func (b toyQueuer) leave(req locker.Request) { b.with(func() { b.forget(req) }) }

// forget removes a waiter from the queue, and releases a lock that it was granted in the meantime.
func (s *toy) forget(req locker.Request) {
	if s.staysInLine {
		return
	}
	s.line[req.Key] = slices.DeleteFunc(s.line[req.Key], func(token string) bool { return token == req.Token })
	s.drop(req)
	s.changes++
}

// toyNotifier notifies waiters when a lock is released.
type toyNotifier struct{ *toyBackend }

func (b toyNotifier) Notify(key string, wake func()) (live func() bool, stop func()) {
	s := b.toy
	s.with(func() { s.wakes[key] = append(s.wakes[key], &wake) })
	time.AfterFunc(time.Millisecond, wake)
	return func() bool { return !s.neverLive }, func() {
		s.with(func() {
			if !s.neverStops {
				s.wakes[key] = slices.DeleteFunc(slices.Clone(s.wakes[key]), func(w *func()) bool { return w == &wake })
			}
		})
	}
}

func (s *toy) Inspect(_ context.Context, key string) (inspect.Inspection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.held(key)
	switch {
	case !ok:
		return inspect.Inspection{State: inspect.Free}, nil
	case l.kept && !s.seesHeldOnly:
		return inspect.Inspection{State: inspect.Kept, Remaining: time.Until(l.expires)}, nil
	}
	i := inspect.Inspection{State: inspect.Held, Owner: l.token, Remaining: time.Until(l.expires), Fence: s.fence}
	if !s.tellsTokens {
		i.Owner = l.token[:min(8, len(l.token))]
	}
	return i, nil
}

func (s *toy) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	i, _ := s.Inspect(ctx, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.held(key); !ok || !s.forcesAny && !strings.HasPrefix(l.token, owner) {
		return i, locker.ErrNotHeld
	}
	if !s.forcesNothing {
		delete(s.locks, key)
		s.tell(key)
	}
	return i, nil
}
