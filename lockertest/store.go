// Package lockertest has a store of locks for tests of programs that use locks. The store is down, slow, or loses a
// lock, when the test says so.
//
//	store := lockertest.NewStore()
//	l := locker.NewClient(store) // for the code under test
//	store.Down()                 // its calls fail with locker.ErrUnavailable from now on
//
// It is the store of package memory with a network in front that can fail. It works in real time, and with the virtual
// clock of testing/synctest if it is made inside of the bubble. Package memory says what to do about the race detector
// then.
package lockertest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/memory"
)

// Store is a store of locks in the memory of this process. Several Clients can share it, as several processes share a
// Redis server. It implements [backend.Backend] and all of its optional interfaces that package memory implements, and
// [backend.LossNotifier]. It is safe for concurrent use.
type Store struct {
	// locks is not embedded: a method of it that Store lacks would work while the store is down.
	locks *memory.Backend

	mu      sync.Mutex
	down    bool
	delay   time.Duration
	changed chan struct{}      // closed and replaced when down or delay changes, and when a holder comes
	line    context.Context    // ends when the store goes down
	cut     context.CancelFunc // ends line

	owed     []backend.Request // the releases to make when the store is back
	watchers map[*func()]bool
	holders  map[*holder]bool
}

// holder is what NotifyLoss was given.
type holder struct {
	req  backend.Request
	lost func(err error)
}

// timeout is how long a request waits for its answer. The other backends have the same default.
const timeout = 5 * time.Second

var errDown = fmt.Errorf("%w: the store of this test is down", locker.ErrUnavailable)

// NewStore returns an empty store, which is up and answers at once.
func NewStore() *Store {
	s := &Store{
		locks: memory.NewBackend(), changed: make(chan struct{}),
		watchers: make(map[*func()]bool), holders: make(map[*holder]bool),
	}
	s.line, s.cut = context.WithCancel(context.Background())
	return s
}

// Down makes the store unreachable until Up is called. Requests fail at once with [locker.ErrUnavailable], also those
// under way, and are not executed. Callers that wait for a lock go on to wait for their patience; see
// [locker.Patience]. Nothing is reported. The locks stay in the store, and those that are not renewed end with their
// TTL.
func (s *Store) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = true
	s.cut()
	s.change()
}

// Up ends what Down began. Releases that failed in the meantime are made up for, and what happened to locks in the
// meantime is reported.
func (s *Store) Up() {
	s.mu.Lock()
	if !s.down {
		s.mu.Unlock()
		return
	}
	s.down = false
	s.line, s.cut = context.WithCancel(context.Background())
	s.change()
	watchers := slices.Collect(maps.Keys(s.watchers))
	s.mu.Unlock()
	s.settle()
	for _, changed := range watchers {
		(*changed)()
	}
	s.report()
}

// Delay makes each request take d before it is executed, also those under way. The zero value ends this. A request that
// takes more than 5 s, or longer than its context, fails with [locker.ErrUnavailable]. What the store sends by itself
// is not delayed: the lock for a caller that waits for it, and reports of losses.
func (s *Store) Delay(d time.Duration) {
	s.mu.Lock()
	s.delay = d
	s.change()
	s.mu.Unlock()
	s.settle()
}

// Lose takes the lock of key away from its owner, as a server does that loses its data, or an operator. The next waiter
// gets it. If no Client has the lock, Lose waits until one has it, and fails with ctx's error if ctx ends before. It
// works also while the store is down.
//
// The lease of the owner ends at once with [locker.LostTakenOver] or [locker.LostGone]. While the store is down, it
// ends when the store is up again, or with its validity.
func (s *Store) Lose(ctx context.Context, key string) error {
	for {
		s.mu.Lock()
		holders, changed := slices.Collect(maps.Keys(s.holders)), s.changed
		s.mu.Unlock()
		for _, h := range holders {
			if h.req.Key != key {
				continue
			}
			if _, err := s.locks.ForceRelease(ctx, key, h.req.Token); err == nil {
				s.report()
				return nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("lockertest: nobody has the lock %q: %w", key, ctx.Err())
		}
	}
}

// change wakes the requests under way, and Lose. Call with mu held.
func (s *Store) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// state returns whether the store is down, its delay, and a channel that is closed when one of them changes.
func (s *Store) state() (down bool, delay time.Duration, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down, s.delay, s.changed
}

// reach brings a request to the store. Every operation begins with it. It fails if the request is not to be executed.
func (s *Store) reach(ctx context.Context) error {
	for start := time.Now(); ; {
		down, delay, changed := s.state()
		took := time.Since(start)
		switch {
		case down:
			return errDown
		case took >= delay:
			return nil
		case took >= timeout:
			return fmt.Errorf("%w: no answer for %v", locker.ErrUnavailable, timeout)
		}
		t := time.NewTimer(min(delay, timeout) - took)
		select {
		case <-t.C:
		case <-changed:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w: %w", locker.ErrUnavailable, ctx.Err())
		}
		t.Stop()
	}
}

// Acquire implements [backend.Backend].
func (s *Store) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := s.reach(ctx); err != nil {
		return backend.Grant{}, err
	}
	return s.locks.Acquire(ctx, req)
}

// Capabilities implements [backend.Capable].
func (s *Store) Capabilities() backend.Capabilities { return s.locks.Capabilities() }

// AcquireMany implements [backend.ManyAcquirer].
func (s *Store) AcquireMany(
	ctx context.Context, reqs []backend.Request, c backend.Choice,
) ([]*backend.Grant, error) {
	if err := s.reach(ctx); err != nil {
		return nil, err
	}
	return s.locks.AcquireMany(ctx, reqs, c)
}

// Extend implements [backend.Backend].
func (s *Store) Extend(ctx context.Context, req backend.Request) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	return s.locks.Extend(ctx, req)
}

// Export implements [backend.Exporter].
func (s *Store) Export(ctx context.Context, req backend.Request, to string) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	return s.locks.Export(ctx, req, to)
}

// Resume implements [backend.Exporter]. An attempt that was not answered is undone.
func (s *Store) Resume(ctx context.Context, req backend.Request, from string) (backend.Grant, error) {
	if err := s.reach(ctx); err != nil {
		if !errors.Is(err, errDown) {
			req.Token = from
			s.owe(req)
		}
		return backend.Grant{}, err
	}
	return s.locks.Resume(ctx, req, from)
}

// Verify implements [backend.Verifier].
func (s *Store) Verify(ctx context.Context, req backend.Request) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	return s.locks.Verify(ctx, req)
}

// Release implements [backend.Backend]. A release that fails is executed later.
func (s *Store) Release(ctx context.Context, req backend.Request) error {
	err := s.reach(ctx)
	if err == nil {
		return s.locks.Release(ctx, req)
	}
	s.owe(req)
	return err
}

// owe notes a release that nobody waits for. It is executed after the delay, or when the store is back.
func (s *Store) owe(req backend.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owed = append(s.owed, req)
	time.AfterFunc(s.delay, s.settle)
}

// settle executes the releases that are owed, unless the store is down.
func (s *Store) settle() {
	s.mu.Lock()
	var owed []backend.Request
	if !s.down {
		owed, s.owed = s.owed, nil
	}
	s.mu.Unlock()
	for _, req := range owed {
		_ = s.locks.Release(context.Background(), req)
	}
}

// Queue implements [backend.Queuer]. Waiters are served in the order of their arrival, and of their return after an
// outage.
func (s *Store) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	for {
		start := time.Now()
		err := s.reach(ctx)
		if err == nil {
			wait.Answered()
			var g backend.Grant
			if g, err = s.queue(ctx, req, wait); !errors.Is(err, errDown) {
				if g.Sent.IsZero() {
					g.Sent = start
				}
				return g, err
			}
			start = time.Now()
		}
		if _, end := wait.Failed(ctx, start, err); end != nil {
			return backend.Grant{}, end
		}
		if down, _, changed := s.state(); down {
			if err := sleep(ctx, wait, changed); err != nil {
				return backend.Grant{}, err
			}
		}
	}
}

// sleep returns when changed is closed, or when the call has no patience left.
func sleep(ctx context.Context, wait backend.Wait, changed <-chan struct{}) error {
	news, over := make(chan bool, 1), make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-changed:
			news <- false
		case <-over:
		}
	}()
	left, _ := wait.Left()
	_, err := wait.Sleep(ctx, left, news)
	return err
}

// queue waits in the queue of the locks until the store goes down, and fails with errDown then.
func (s *Store) queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	s.mu.Lock()
	line := s.line
	s.mu.Unlock()
	connected, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(line, cancel)()
	g, err := s.locks.Queue(connected, req, wait)
	if line.Err() == nil || errors.Is(err, locker.ErrClosed) {
		return g, err
	}
	if err == nil { // the answer is lost, and the caller asks again
		_ = s.locks.Release(ctx, req)
	}
	return backend.Grant{}, errDown
}

// NotifyLoss implements [backend.LossNotifier].
func (s *Store) NotifyLoss(req backend.Request, lost func(err error)) (stop func()) {
	h := &holder{req, lost}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holders[h] = true
	s.change()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.holders, h)
	}
}

// NotifyWanted implements [backend.WantedNotifier]. Callers that wait when the store goes down queue again when it is
// back, so nothing has to be made up for.
func (s *Store) NotifyWanted(req backend.Request, wanted func()) (stop func()) {
	return s.locks.NotifyWanted(req, s.whileUp(wanted))
}

// whileUp returns a function that calls told, unless the store is down.
func (s *Store) whileUp(told func()) func() {
	return func() {
		if down, _, _ := s.state(); !down {
			told()
		}
	}
}

// report tells the holders that have lost their locks.
func (s *Store) report() {
	s.mu.Lock()
	holders := slices.Collect(maps.Keys(s.holders))
	if s.down {
		holders = nil
	}
	s.mu.Unlock()
	for _, h := range holders {
		if err := s.locks.Verify(context.Background(), h.req); err != nil {
			h.lost(err)
		}
	}
}

// Inspect implements [inspect.Inspector].
func (s *Store) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	if err := s.reach(ctx); err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	return s.locks.Inspect(ctx, key)
}

// List implements [inspect.Lister].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	return func(yield func(inspect.Listed, error) bool) {
		if err := s.reach(ctx); err != nil {
			yield(inspect.Listed{}, err)
			return
		}
		s.locks.List(ctx, prefix)(yield)
	}
}

// ForceRelease implements [inspect.Inspector].
func (s *Store) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	if err := s.reach(ctx); err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	defer s.report()
	return s.locks.ForceRelease(ctx, key, owner)
}

// RaiseFences implements [inspect.FenceRaiser].
func (s *Store) RaiseFences(ctx context.Context, past uint64) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	return s.locks.RaiseFences(ctx, past)
}

// Watch implements [inspect.Watcher].
func (s *Store) Watch(key string, changed func()) (stop func(), err error) {
	forget, err := s.locks.Watch(key, s.whileUp(changed))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[&changed] = true
	return func() {
		forget()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, &changed)
	}, nil
}
