package conformance

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker"
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
	lose    bool              // the next reply
	deaf    bool              // waiters are not notified
	outages int               // requests in a row that failed
	husks   map[string]bool   // leftovers of locks, by key
	extends map[string]int    // by token
	first   map[string]string // labels, by key

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
	hidesLosses, lossIsFault, mistakesLosses bool
	hidesGrants, hidesKeeps, watchesOn,
	watchBreaks bool
	invents, extendDropsLabel, firstLabelStays,
	ownsByLabel bool // mistakes with labels
	verifiesAny, verifyExtends bool
	tellsTokens, forcesAny, forcesNothing,
	seesHeldOnly bool
	remembersHeld, sweeps, tires, undoesWithinTTL, leavesHusks, leavesKept, fenceWraps, fenceGivenBack, fenceInMemory,
	keepsShort bool
	toySteps

	seconds bool // it counts in whole seconds, rounded up; no flaw

	ttl                               func(time.Duration) time.Duration
	acquireErr, extendErr, releaseErr func(error) error
}

type toyLock struct {
	token   string
	label   string
	fence   uint64
	expires time.Time
	foreign bool
	kept    bool // the lock was released and stays taken
}

func newToy() *toy {
	return &toy{locks: map[string]toyLock{}, line: map[string][]string{}, wakes: map[string][]*func(){},
		husks: map[string]bool{}, extends: map[string]int{}, first: map[string]string{}}
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
		s.mu.Lock()
		defer s.mu.Unlock()
		select {
		case r := <-done: // executed before ctx ended, and therefore not undone
			return r.g, r.err
		default:
			return locker.Grant{}, silent
		}
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
	if s.refusesOddKeys && strings.Contains(req.Key, "\x00") {
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
			return locker.Grant{}, s.locks[req.Key].heldError()
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
		return l.heldError()
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
	case ok && s.owns(l, req) && !s.forgetsOwner:
		return locker.Grant{Fence: l.fence}, nil
	case ok && s.wildRemaining:
		return locker.Grant{}, &locker.HeldError{Remaining: -time.Second, Label: l.label}
	case ok && !s.grantsAll:
		return locker.Grant{}, l.heldError()
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
	s.locks[req.Key] = toyLock{req.Token, s.labelOf(req), s.fence, s.after(ttl), false, false}
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
