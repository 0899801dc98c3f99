package soak

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/rwlock"
)

// planEnv is a variable that makes the test binary a worker.
const planEnv = "SOAK_TEST_PLAN"

// plan says what a worker needs to know.
type plan struct {
	Who   int // unique in the trial
	URL   string
	Work  work
	Limit int // of permits, if Work is onePermit
	// Mixed is of how many calls for readers and writers four may write and two write, if Work is ofPlaces.
	Mixed int
	Once  bool   // each goroutine makes one call, which does not wait, and then the process ends
	Audit string // the directory of the audit logs
	Texts string // the directory of texts, if Work is ofTransfers

	program string        // of the worker; empty: this one
	resign  chan struct{} // in the worker: the leader is to hand on
}

// work is what a process does.
type work string

const (
	ofLocks  work = "locks"
	ofPlaces work = "places" // permits, readers and writers
	ofLimits work = "limits" // permits of one key
	ofHolds  work = "holds"  // locks that are held for long
	ofTerms  work = "terms"  // an election
	ofTurns  work = "turns"  // a lock that is handed on as in an election

	ofTransfers work = "transfers" // locks that are passed on

	ofLocksAndPlaces work = "locks and places"
)

// callers returns what the goroutines of a process do, by Client. Those of one Client hand locks over to each other,
// and its readers share slots.
func (p plan) callers() [][]func(w *worker, ctx context.Context) {
	locks := (*worker).locks
	places := slices.Repeat([]func(w *worker, ctx context.Context){(*worker).permits, (*worker).readersAndWriters}, 2)
	switch p.Work {
	case ofPlaces:
		return [][]func(w *worker, ctx context.Context){places}
	case ofLocksAndPlaces:
		return [][]func(w *worker, ctx context.Context){{locks}, {locks, locks, locks, locks}, places}
	case ofLimits:
		return [][]func(w *worker, ctx context.Context){{(*worker).limited, (*worker).limited}}
	case ofHolds:
		return [][]func(w *worker, ctx context.Context){slices.Repeat(
			[]func(w *worker, ctx context.Context){(*worker).holds}, 4)}
	case ofTerms:
		return [][]func(w *worker, ctx context.Context){{(*worker).campaigns}}
	case ofTurns:
		return [][]func(w *worker, ctx context.Context){{(*worker).takesTurns}}
	case ofTransfers:
		return [][]func(w *worker, ctx context.Context){{(*worker).transfers, (*worker).transfers}}
	}
	return [][]func(w *worker, ctx context.Context){{locks}, {locks, locks, locks, locks}}
}

const (
	// ttl is that of all locks.
	ttl = 2 * time.Second
	// limit is that of each call. Unlock and Close have limits of their own, which are shorter.
	limit = 10 * time.Second
	// looks is how often a holder relies on its lease.
	looks = 3 * time.Millisecond
)

var keys = []string{"a", "b", "c"}

// What a process is told, beside the end of stdin.
const (
	resign = "resign" // hand on what it leads
	leave  = "leave"  // end what it does, but not the process
)

// worker is one goroutine of a process.
type worker struct {
	plan
	locker.Locker
	rw   *rwlock.RWLock
	loop string // unique in the process
	n    int    // of names
	home int    // which of its keys it uses
	left int    // how often it still does
	say  func(word)
}

// workHere is the main function of a worker. It executes the lines of stdin, and ends when stdin is closed.
func workHere() {
	var p plan
	if err := json.Unmarshal([]byte(os.Getenv(planEnv)), &p); err != nil {
		panic(err)
	}
	p.resign = make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if !p.Once {
			defer cancel()
		}
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			switch in.Text() {
			case resign:
				select {
				case p.resign <- struct{}{}:
				default:
				}
			case leave:
				cancel()
			}
		}
	}()
	say, flush := speaker(os.Stdout)
	defer flush()
	defer func() { <-closed }()
	var all sync.WaitGroup
	for i, callers := range p.callers() {
		all.Go(func() { p.share(ctx, fmt.Sprint(i), callers, say) })
	}
	all.Wait()
}

// speaker returns a function that tells the judge a word, and one that writes what is left. A word is written at once,
// because the process may be killed next. One that another word follows at once, or that says only that a call has
// returned, is written together with the next word: that saves half of the system calls.
func speaker(to io.Writer) (say func(w word), flush func()) {
	var mu sync.Mutex
	var lines bytes.Buffer
	out := json.NewEncoder(&lines)
	write := func() {
		if _, err := lines.WriteTo(to); err != nil {
			os.Exit(1) // the trial is over
		}
	}
	say = func(w word) {
		mu.Lock()
		defer mu.Unlock()
		if err := out.Encode(w); err != nil {
			panic(err)
		}
		if w.What != returns && w.What != has {
			write()
		}
	}
	return say, func() {
		mu.Lock()
		defer mu.Unlock()
		write()
	}
}

// share lets workers contend that have one Client, which has a name.
func (p plan) share(
	ctx context.Context, name string, callers []func(w *worker, ctx context.Context), say func(word),
) {
	l, err := config.Open(ctx, p.audited(name), locker.TTL(ttl))
	if err != nil {
		panic(err) // only a mistake in the URL
	}
	closer := worker{plan: p, loop: name, say: say}
	defer closer.during("Close", func() { _ = l.Close() })
	rw := rwlock.New(l)
	var all sync.WaitGroup
	for k, work := range callers {
		w := &worker{plan: p, Locker: l, rw: rw, loop: fmt.Sprintf("%s-%d", name, k), say: say}
		all.Go(func() {
			for ctx.Err() == nil {
				if work(w, ctx); p.Once {
					return
				}
			}
		})
	}
	all.Wait()
}

func now() int64 { return time.Now().UnixNano() }

// name returns a new name for a call or a lease.
func (w *worker) name() string {
	w.n++
	return fmt.Sprintf("%d.%s.%d", w.Who, w.loop, w.n)
}

// during tells the judge of a call.
func (w *worker) during(what string, f func()) {
	name := w.name()
	w.say(word{What: calls, Lease: name, Key: what})
	f()
	w.say(word{What: returns, Lease: name})
}

// pause is what a program does that does not go on at once after a failure.
func pause() { <-time.After(rand.N(20 * time.Millisecond)) }

// locks acquires one lock, or several, and holds it mostly for a short time, and sometimes until it was renewed.
func (w *worker) locks(ctx context.Context) {
	var lease locker.Lease
	var err error
	began, mine := now(), keys[rand.IntN(len(keys)):][:1]
	call, cancel := context.WithTimeout(ctx, rand.N(limit))
	switch n := rand.IntN(10); {
	case n == 0:
		mine = keys[:2]
		w.during("LockAll", func() {
			var all *locker.AllLease
			if all, err = locker.LockAll(call, w.Locker, mine); err == nil {
				lease = all
			}
		})
	case n < 3 || w.Once:
		w.during("TryLock", func() { lease, err = w.TryLock(call, mine[0]) })
	default:
		w.during("Lock", func() { lease, err = w.Lock(call, mine[0]) })
	}
	cancel()
	if err != nil {
		pause()
		return
	}
	name, at := w.name(), now()
	tell := func(what string, at int64) {
		for _, key := range mine {
			fence, owner := lease.Fence(), lease.Token()
			if all, ok := lease.(*locker.AllLease); ok {
				fence, owner = all.FenceOf(key), "" // which is not handed over
			}
			w.say(word{What: what, Kind: lock, Key: key, Lease: name, Owner: owner, Fence: fence, Began: began, At: at})
		}
	}
	tell(has, at)
	d := rand.N(30 * time.Millisecond)
	if rand.IntN(30) == 0 {
		d = rand.N(2 * ttl)
	}
	rely(lease, d, tell)
	if rand.IntN(5) == 0 {
		w.verify(ctx, lease, tell)
	}
	w.during("Unlock", func() { _ = lease.Unlock(ctx) })
}

const (
	// holdTTL is that of locks that are held for long. It is longer than an election of etcd.
	holdTTL = 4 * time.Second
	// longHold is how long they are held at most: longer than a leader stands still.
	longHold = 30 * time.Second
	longKeys = 10
)

// holds acquires a lock, and holds it while it is renewed again and again.
func (w *worker) holds(ctx context.Context) {
	var lease locker.Lease
	var err error
	began, key := now(), fmt.Sprint("long", rand.IntN(longKeys))
	call, cancel := context.WithTimeout(ctx, limit)
	w.during("Lock", func() { lease, err = w.Lock(call, key, locker.TTL(holdTTL)) })
	cancel()
	if err != nil {
		pause()
		return
	}
	name := w.name()
	tell := func(what string, at int64) {
		w.say(word{What: what, Kind: lock, Key: key, Lease: name, Owner: lease.Token(), Fence: lease.Fence(), Began: began,
			At: at})
	}
	tell(has, now())
	held, stop := context.WithTimeout(ctx, rand.N(longHold))
	defer stop()
	for held.Err() == nil && lease.Err() == nil {
		rely(lease, 100*time.Millisecond, tell)
	}
	w.during("Unlock", func() { _ = lease.Unlock(ctx) })
}

// rely relies on a lease for d, or until it ends, and tells the judge.
func rely(lease locker.Lease, d time.Duration, tell func(what string, at int64)) {
	for end := time.Now().Add(d); ; time.Sleep(min(looks, time.Until(end))) {
		at := now() // before the look, because the process may be stopped between the two
		if lease.Err() != nil || !time.Now().Before(lease.Until()) {
			return
		}
		tell(relies, at)
		if !time.Now().Before(end) {
			return
		}
	}
}

// verify asks the store about a lease, and tells the judge.
func (w *worker) verify(ctx context.Context, lease locker.Lease, tell func(what string, at int64)) {
	at, err := now(), error(nil)
	w.during("Verify", func() {
		call, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err = locker.Verify(call, lease)
	})
	if err == nil {
		tell(verified, at)
	}
}
