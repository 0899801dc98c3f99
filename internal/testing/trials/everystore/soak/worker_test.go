package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

// planEnv is a variable that makes the test binary a worker.
const planEnv = "SOAK_TEST_PLAN"

// plan says what a worker needs to know.
type plan struct {
	Who int // unique in the trial
	URL string
}

// callers is how many goroutines of a process share each of its Clients. They hand locks over to each other.
var callers = [...]int{1, 4}

const (
	// ttl is that of all locks.
	ttl = 2 * time.Second
	// limit is that of each call. Unlock and Close have limits of their own, which are shorter.
	limit = 10 * time.Second
)

var keys = []string{"a", "b", "c"}

// worker is one goroutine of a process.
type worker struct {
	plan
	locker.Locker
	loop string // unique in the process
	n    int    // of names
	say  func(word)
}

// workHere is the main function of a worker. It ends when stdin is closed.
func workHere() {
	var p plan
	if err := json.Unmarshal([]byte(os.Getenv(planEnv)), &p); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout) // writes each word at once
	say := func(w word) {
		mu.Lock()
		defer mu.Unlock()
		if out.Encode(w) != nil {
			os.Exit(1) // the trial is over
		}
	}
	var all sync.WaitGroup
	for i, n := range callers {
		all.Go(func() { p.share(ctx, i, n, say) })
	}
	all.Wait()
}

// share lets n workers contend that have one Client, the i-th of the process.
func (p plan) share(ctx context.Context, i, n int, say func(word)) {
	l, err := config.Open(ctx, p.URL)
	if err != nil {
		panic(err) // only a mistake in the URL
	}
	closer := worker{plan: p, loop: fmt.Sprint(i), say: say}
	defer closer.during("Close", func() { _ = l.Close() })
	var all sync.WaitGroup
	for k := range n {
		w := &worker{plan: p, Locker: l, loop: fmt.Sprintf("%d-%d", i, k), say: say}
		all.Go(func() { w.work(ctx) })
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

func (w *worker) work(ctx context.Context) {
	for ctx.Err() == nil {
		var lease locker.Lease
		var err error
		began, mine := now(), keys[rand.IntN(len(keys)):][:1]
		call, cancel := context.WithTimeout(ctx, rand.N(limit))
		switch rand.IntN(10) {
		case 0:
			mine = keys[:2]
			w.during("LockAll", func() {
				var all *locker.AllLease
				if all, err = locker.LockAll(call, w, mine, locker.TTL(ttl)); err == nil {
					lease = all
				}
			})
		case 1, 2:
			w.during("TryLock", func() { lease, err = w.TryLock(call, mine[0], locker.TTL(ttl)) })
		default:
			w.during("Lock", func() { lease, err = w.Lock(call, mine[0], locker.TTL(ttl)) })
		}
		cancel()
		if err != nil {
			time.Sleep(rand.N(20 * time.Millisecond)) // as a program would that does not go on at once
			continue
		}
		w.hold(ctx, lease, mine, began)
	}
}

// hold has a lease of some keys, mostly for a short time, and sometimes until it was renewed.
func (w *worker) hold(ctx context.Context, lease locker.Lease, keys []string, began int64) {
	name, at := w.name(), now()
	each := func(what string, at int64) {
		for _, key := range keys {
			fence, owner := lease.Fence(), lease.Token()
			if all, ok := lease.(*locker.AllLease); ok {
				fence, owner = all.FenceOf(key), "" // which is not handed over
			}
			w.say(word{What: what, Key: key, Lease: name, Owner: owner, Fence: fence, Began: began, At: at})
		}
	}
	each(has, at)
	d := rand.N(30 * time.Millisecond)
	if rand.IntN(30) == 0 {
		d = rand.N(2 * ttl)
	}
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(3 * time.Millisecond) {
		at := now() // before the look, because the process may be stopped between the two
		if lease.Err() != nil || !time.Now().Before(lease.Until()) {
			break
		}
		each(relies, at)
	}
	if rand.IntN(5) == 0 {
		at, err := now(), error(nil)
		w.during("Verify", func() {
			call, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			err = locker.Verify(call, lease)
		})
		if err == nil {
			each(verified, at)
		}
	}
	w.during("Unlock", func() { _ = lease.Unlock(ctx) })
}
