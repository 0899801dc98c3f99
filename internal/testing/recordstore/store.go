// Package recordstore has a store of records in memory, for tests of package record, with faults on command.
package recordstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/record"
)

// Request is what a fault is decided by.
type Request struct {
	Op   string // "get", "create", "replace" or "list"
	Name string
	Text string // what is to be written
	N    int    // the number of the request, from 0
}

// Fault says what happens to a request. The zero value is no fault.
type Fault struct {
	Before  time.Duration // for how long the request is on its way, beside Latency. It goes on when its context ends
	After   time.Duration // for how long its reply is on its way, beside Latency
	Lost    bool          // the reply is lost: an error comes in its place
	Twice   bool          // it is executed twice, and the reply is that of the second execution
	Refused bool          // it is not executed: an error comes in the place of the reply
	Doubted bool          // it is not executed, and the reply is record.ErrConflict, although the condition may hold
}

// Errors of requests that have met a fault.
var (
	errLost    = errors.New("recordstore: the connection was lost")
	errRefused = errors.New("recordstore: the store is down")
)

// Store implements record.Store. The version of a record is a hash of its text, as an ETag of S3 is. So equal texts
// have equal versions. It may be used in a bubble of testing/synctest.
type Store struct {
	// Latency is how long each way takes, of a request and of its reply. Set it before the first request.
	Latency time.Duration

	mu      sync.Mutex
	records map[string]stored
	faults  func(r Request) Fault
	lose    bool
	down    bool
	hangs   chan struct{} // closed when the store goes on; nil if it does not hang
	counts  map[string]int
	n       int
	watches map[string]map[*func()]bool // by name; see Watched
	pending sync.WaitGroup              // the requests that are on their way
}

type stored struct {
	text []byte
	at   time.Time
}

func (r stored) version() string {
	if r.text == nil {
		return ""
	}
	sum := sha256.Sum256(r.text)
	return hex.EncodeToString(sum[:8])
}

// New returns an empty Store.
func New() *Store {
	return &Store{records: make(map[string]stored), counts: make(map[string]int)}
}

// Inject sets the function that decides what happens to each request, from now on. nil means that nothing does. It is
// called with a mutex held, when the request is sent.
func (s *Store) Inject(faults func(r Request) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = faults
}

// Down makes all requests fail until up is called. They are not executed.
func (s *Store) Down() (up func()) {
	set := func(down bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.down = down
	}
	set(true)
	return func() { set(false) }
}

// Hang makes the store stand still until resume is called. It then executes what has arrived in between.
func (s *Store) Hang() (resume func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hangs := make(chan struct{})
	s.hangs = hangs
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.hangs == hangs {
			s.hangs = nil
			close(hangs)
		}
	}
}

// LoseReply makes the store lose the reply to the next request.
func (s *Store) LoseReply() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose = true
}

// Wait returns when no request is on its way any more. A test calls it at its end.
func (s *Store) Wait() { s.pending.Wait() }

// Delete deletes a record.
func (s *Store) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, name)
	s.changed(name)
}

// Put stores a text, whatever was there.
func (s *Store) Put(name, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[name] = stored{[]byte(text), time.Now()}
	s.changed(name)
}

// Text returns the text of a record, and an empty one if there is none.
func (s *Store) Text(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.records[name].text)
}

// Requests returns how many requests of each kind were sent.
func (s *Store) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]int)
	for op, n := range s.counts {
		all[op] = n
	}
	return all
}

// Taken lists the names of the records with locks that are taken, and were written less than their length ago.
func (s *Store) Taken() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, r := range s.records {
		d, err := record.Describe(r.text)
		if err != nil || d.State != inspect.Free && time.Since(r.at) < d.Length {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// reply is the answer to a request.
type reply struct {
	text    []byte
	version string
	page    []record.Listed
	err     error
}

// send sends a request. The caller gets its reply, or the error of ctx. The request goes on when ctx ends.
func (s *Store) send(ctx context.Context, r Request, execute func() reply) reply {
	if err := ctx.Err(); err != nil {
		return reply{err: err}
	}
	f := s.begin(&r)
	replies := make(chan reply, 1)
	s.pending.Go(func() {
		time.Sleep(s.Latency + f.Before)
		s.standstill()
		answer := s.execute(f, execute)
		time.Sleep(s.Latency + f.After)
		replies <- answer
	})
	select {
	case answer := <-replies:
		return answer
	case <-ctx.Done():
		return reply{err: fmt.Errorf("recordstore: %w", ctx.Err())}
	}
}

// begin counts a request, and returns what happens to it.
func (s *Store) begin(r *Request) (f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.N = s.n
	s.n++
	s.counts[r.Op]++
	if s.faults != nil {
		f = s.faults(*r)
	}
	if s.lose {
		s.lose, f.Lost = false, true
	}
	return f
}

// standstill returns when the store does not hang.
func (s *Store) standstill() {
	for {
		s.mu.Lock()
		hangs := s.hangs
		s.mu.Unlock()
		if hangs == nil {
			return
		}
		<-hangs
	}
}

func (s *Store) execute(f Fault, execute func() reply) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.down || f.Refused:
		return reply{err: errRefused}
	case f.Doubted:
		return reply{err: record.ErrConflict}
	}
	answer := execute()
	if f.Twice {
		answer = execute()
	}
	if f.Lost {
		return reply{err: errLost}
	}
	return answer
}

// Get implements record.Store.
func (s *Store) Get(ctx context.Context, name string) ([]byte, string, error) {
	answer := s.send(ctx, Request{Op: "get", Name: name}, func() reply {
		r := s.records[name]
		return reply{text: slices.Clone(r.text), version: r.version()}
	})
	return answer.text, answer.version, answer.err
}

// Create implements record.Store.
func (s *Store) Create(ctx context.Context, name string, text []byte) (string, error) {
	answer := s.send(ctx, Request{Op: "create", Name: name, Text: string(text)}, func() reply {
		return s.put(name, "", text)
	})
	return answer.version, answer.err
}

// Replace implements record.Store.
func (s *Store) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	answer := s.send(ctx, Request{Op: "replace", Name: name, Text: string(text)}, func() reply {
		if version == "" {
			return reply{err: record.ErrConflict}
		}
		return s.put(name, version, text)
	})
	return answer.version, answer.err
}

// pageSize is how many records a page has.
const pageSize = 100

// List implements record.Lister.
func (s *Store) List(ctx context.Context, prefix, from string) ([]record.Listed, string, error) {
	answer := s.send(ctx, Request{Op: "list", Name: prefix}, func() (r reply) {
		for _, name := range slices.Sorted(maps.Keys(s.records)) {
			if strings.HasPrefix(name, prefix) && name > from && len(r.page) <= pageSize {
				r.page = append(r.page, record.Listed{Name: name, Text: slices.Clone(s.records[name].text)})
			}
		}
		return r
	})
	if len(answer.page) <= pageSize {
		return answer.page, "", answer.err
	}
	page := answer.page[:pageSize]
	return page, page[pageSize-1].Name, nil
}

// put stores a text if the version of the record is the given one. Call with mu held.
func (s *Store) put(name, version string, text []byte) reply {
	if s.records[name].version() != version {
		return reply{err: record.ErrConflict}
	}
	r := stored{slices.Clone(text), time.Now()}
	s.records[name] = r
	s.changed(name)
	return reply{version: r.version()}
}
