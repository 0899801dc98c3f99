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

const (
	// loops is how many goroutines of a process contend, each with a Client of its own.
	loops = 2
	// ttl is that of all locks.
	ttl = 2 * time.Second
	// limit is that of each call. Unlock and Close have limits of their own, which are shorter.
	limit = 10 * time.Second
)

var keys = []string{"a", "b", "c"}

// worker is one loop of a process.
type worker struct {
	plan
	loop int
	n    int
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
	for loop := range loops {
		all.Go(func() { (&worker{plan: p, loop: loop, say: say}).work(ctx) })
	}
	all.Wait()
}

func now() int64 { return time.Now().UnixNano() }

// name returns a new name for a call or a lease.
func (w *worker) name() string {
	w.n++
	return fmt.Sprintf("%d.%d.%d", w.Who, w.loop, w.n)
}

// during tells the judge of a call.
func (w *worker) during(what string, f func()) {
	name := w.name()
	w.say(word{What: calls, Lease: name, Key: what})
	f()
	w.say(word{What: returns, Lease: name})
}

func (w *worker) work(ctx context.Context) {
	l, err := config.Open(ctx, w.URL)
	if err != nil {
		panic(err) // only a mistake in the URL
	}
	defer w.during("Close", func() { _ = l.Close() })
	for ctx.Err() == nil {
		var lease locker.Lease
		began, mine := now(), keys[rand.IntN(len(keys)):][:1]
		call, cancel := context.WithTimeout(ctx, rand.N(limit))
		switch rand.IntN(10) {
		case 0:
			mine = keys[:2]
			w.during("LockAll", func() {
				var all *locker.AllLease
				if all, err = locker.LockAll(call, l, mine, locker.TTL(ttl)); err == nil {
					lease = all
				}
			})
		case 1, 2:
			w.during("TryLock", func() { lease, err = l.TryLock(call, mine[0], locker.TTL(ttl)) })
		default:
			w.during("Lock", func() { lease, err = l.Lock(call, mine[0], locker.TTL(ttl)) })
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
			fence := lease.Fence()
			if all, ok := lease.(*locker.AllLease); ok {
				fence = all.FenceOf(key)
			}
			w.say(word{What: what, Key: key, Lease: name, Fence: fence, Began: began, At: at})
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
