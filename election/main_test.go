package election_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

// internal/testing/electiontest has the tests on real servers.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key = "shard-7"
	ttl = 3 * time.Second
)

// store is a store in memory that several clients share, which a test can make fail. It counts looks.
type store struct {
	*memory.Backend

	mu     sync.Mutex
	broken error
	looks  int
	asked  []time.Time // when Queue was called
	silent bool        // Watch is not supported
	hint   func()      // what Watch was called with last
}

func newStore() *store { return &store{Backend: memory.NewBackend()} }

// breaks makes every call fail with err until it is called with nil.
func (s *store) breaks(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = err
}

func (s *store) state() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

func (s *store) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	s.mu.Lock()
	s.asked = append(s.asked, time.Now())
	s.mu.Unlock()
	if err := s.state(); err != nil {
		return backend.Grant{}, err
	}
	return s.Backend.Queue(ctx, req, wait)
}

func (s *store) Extend(ctx context.Context, req backend.Request) error {
	if err := s.state(); err != nil {
		return err
	}
	return s.Backend.Extend(ctx, req)
}

func (s *store) Release(ctx context.Context, req backend.Request) error {
	if err := s.state(); err != nil {
		return err
	}
	return s.Backend.Release(ctx, req)
}

func (s *store) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	s.mu.Lock()
	s.looks++
	s.mu.Unlock()
	if err := s.state(); err != nil {
		return inspect.Inspection{}, err
	}
	return s.Backend.Inspect(ctx, key)
}

func (s *store) Watch(key string, changed func()) (func(), error) {
	if s.silent {
		return nil, errors.ErrUnsupported
	}
	s.mu.Lock()
	s.hint = changed
	s.mu.Unlock()
	return s.Backend.Watch(key, changed)
}

// tells calls what Watch was called with last.
func (s *store) tells() {
	s.mu.Lock()
	hint := s.hint
	s.mu.Unlock()
	hint()
}

func (s *store) looked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

// attempts returns when Queue was called.
func (s *store) attempts() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// event is something that happened to a candidate.
type event struct {
	at    time.Duration // since the beginning
	who   string
	what  string // "elected", "stopping" (its context ended), "demoted" or "sees"
	term  uint64
	cause error
}

func (e event) String() string {
	return fmt.Sprintf("%v %s %s %d (%v)", e.at, e.who, e.what, e.term, e.cause)
}

// harness is an election in virtual time, and all that happens in it.
type harness struct {
	*testing.T
	store *store
	begun time.Time

	mu     sync.Mutex
	events []event
	errs   []error
	wg     sync.WaitGroup
}

// candidate is one of the election. Its client is its own, as that of a process.
type candidate struct {
	*election.Election
	name    string
	process *process
	client  *locker.Client
	stop    context.CancelFunc // ends Run
	ended   chan error         // receives the result of Run
}

// process is the store as one process reaches it.
type process struct {
	*store
	dead atomic.Bool
}

func (p *process) Release(ctx context.Context, req backend.Request) error {
	if p.dead.Load() {
		return locker.ErrUnavailable
	}
	return p.store.Release(ctx, req)
}

// kill ends the process: what it holds stays in the store.
func (c *candidate) kill() {
	c.process.dead.Store(true)
	c.stop()
	<-c.ended
}

// withHarness runs f in virtual time.
func withHarness(t *testing.T, f func(o *harness)) {
	t.Helper()
	virtual.Test(t, func(t *testing.T) {
		o := &harness{T: t, store: newStore(), begun: time.Now()}
		f(o)
		o.wg.Wait()
		o.inOrder()
	})
}

func (o *harness) saw(who, what string, term uint64, cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, event{time.Since(o.begun), who, what, term, cause})
}

// is returns the events of a kind, of all candidates or of one.
func (o *harness) is(what, who string) (found []event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.events {
		if e.what == what && (who == "" || e.who == who) {
			found = append(found, e)
		}
	}
	return found
}

// last returns the last event of a kind, which there must be.
func (o *harness) last(what, who string) event {
	o.Helper()
	found := o.is(what, who)
	if len(found) == 0 {
		o.Fatalf("%s was not %s: %v", who, what, o.events)
	}
	return found[len(found)-1]
}

// reported returns what OnError was given.
func (o *harness) reported() []error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.errs)
}

// inOrder checks that no candidate was elected while the context of another had not ended, and that terms grow.
func (o *harness) inOrder() {
	o.Helper()
	leads, term := "", uint64(0)
	for _, e := range o.events {
		switch e.what {
		case "elected":
			if leads != "" {
				o.Errorf("%v while %s leads", e, leads)
			}
			if e.term <= term {
				o.Errorf("%v after term %d", e, term)
			}
			leads, term = e.who, e.term
		case "stopping":
			if e.who == leads {
				leads = ""
			}
		}
	}
}

// run starts a candidate. work is its OnElected; nil waits for the end of the context.
func (o *harness) run(name string, work func(ctx context.Context) error, change ...func(*election.Config)) *candidate {
	c := &candidate{name: name, process: &process{store: o.store}, ended: make(chan error, 1)}
	c.client = locker.NewClient(c.process)
	if work == nil {
		work = func(ctx context.Context) error { <-ctx.Done(); return nil }
	}
	config := election.Config{
		Identity: name,
		Options:  []locker.Option{locker.TTL(ttl)},
		OnElected: func(ctx context.Context, term election.Term) error {
			o.saw(name, "elected", term.Number, nil)
			stopping := make(chan struct{})
			stop := context.AfterFunc(ctx, func() {
				defer close(stopping)
				o.saw(name, "stopping", term.Number, context.Cause(ctx))
			})
			err := work(ctx)
			if stop() {
				o.saw(name, "stopping", term.Number, nil)
			} else {
				<-stopping
			}
			return err
		},
		OnDemoted: func(term election.Term, cause error) { o.saw(name, "demoted", term.Number, cause) },
		OnError: func(err error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.errs = append(o.errs, err)
		},
	}
	for _, f := range change {
		f(&config)
	}
	ctx, cancel := context.WithCancel(o.Context())
	c.stop = cancel
	c.Election = election.New(c.client, key, config)
	o.wg.Go(func() {
		defer c.client.Close()
		c.ended <- c.Run(ctx)
	})
	synctest.Wait()
	return c
}

// ends stops candidates and checks the results of Run.
func (o *harness) ends(cs ...*candidate) {
	o.Helper()
	for _, c := range cs {
		c.stop()
		if err := <-c.ended; err != nil {
			o.Errorf("%s: Run returned %v", c.name, err)
		}
	}
}

func (o *harness) want(what string, ok bool) {
	o.Helper()
	if !ok {
		o.Errorf("%s\n%v\nreported: %v", what, o.events, o.errs)
	}
}
