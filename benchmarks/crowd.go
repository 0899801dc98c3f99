package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/golocker/locker/internal/testing/redistest"
)

var crowdColumns = []Column{
	{"rate", "acquisitions/s", 0}, {"trips", "round trips", 2}, {"commands", "commands", 1},
	{"handoff_p50_us", "hand-off p50 µs", 0}, {"handoff_p99_us", "hand-off p99 µs", 0},
	{"wait_p99_us", "wait p99 µs", 0}, {"wait_shares", "longest wait, fair shares", 1}, {"unfairness", "unfairness %", 1},
	{"passed", "passed over", 1}, {"client_us", "client CPU µs", 0}, {"server_us", "server CPU µs", 0},
	{"overlaps", "overlaps", 0}, {"stuck", "stuck", 0},
}

const crowdNote = "Per acquisition: round trips are requests as the servers count them (several commands may come in " +
	"one), commands include those that scripts call. Hand-off: from the start of an unlock to the return of the next " +
	"holder's lock. A fair share is what a client waits if all take turns. Unfairness is how much the share of the " +
	"client that differs most differs from the fair one. Passed over: how often, per 100 acquisitions, a waiter saw " +
	"another client get the lock a second time; zero if all take turns. Overlaps: acquisitions while another client " +
	"held the lock. Stuck: clients that still had no lock five seconds after all others had stopped asking."

const hold = time.Millisecond

// load is what contends for one key.
type load struct {
	goroutines []int // of each client
	hold       time.Duration
}

// visitCrowd is one visit of a crowd. A lock of this process has no servers.
func visitCrowd(
	servers []*redistest.Server, open opener, l load,
) func(context.Context, time.Duration) (Figures, error) {
	return func(ctx context.Context, d time.Duration) (Figures, error) {
		f, _, err := crowd(ctx, servers, open, l, longTimeout, d)
		return f, err
	}
}

// evenly is so many clients with so many goroutines.
func evenly(clients, goroutines int) []int { return slices.Repeat([]int{goroutines}, clients) }

// crowd lets goroutines contend for one key for d.
func crowd(
	ctx context.Context, group []*redistest.Server, open opener, l load, timeout, d time.Duration,
) (Figures, work, error) {
	if err := flush(group); err != nil {
		return nil, work{}, err
	}
	clients, closeAll, err := open.sessions(len(l.goroutines), addrs(group), limits{1 + slices.Max(l.goroutines), timeout})
	if err != nil {
		return nil, work{}, err
	}
	defer closeAll()
	ready, cancel := context.WithTimeout(context.Background(), 10*time.Second) // without a Trace: it does not count
	defer cancel()
	if err := meet(ready, clients); err != nil {
		return nil, work{}, err
	}
	var sessions []session // by goroutine
	var client []int       // by goroutine
	for i, goroutines := range l.goroutines {
		sessions = append(sessions, slices.Repeat([]session{clients[i]}, goroutines)...)
		client = append(client, slices.Repeat([]int{i}, goroutines)...)
	}
	n := len(sessions)
	ctx, cancel = context.WithTimeout(ctx, d+5*time.Second)
	defer cancel()
	const key = "contended"
	var mu sync.Mutex // protects all variables below
	var released time.Time
	var failed error
	holders, overlaps, total, stuck, last := 0, 0, 0, 0, 0
	counts := make([]int, n)
	passed := newQueueCheck(n)
	waits, handoffs := newSamples(1<<20), newSamples(1<<20)
	between, first := newSamples(1<<16), newSamples(1<<16) // hand-overs between clients; waits of the first goroutine

	m := newMeter(group)
	start := time.Now()
	end := start.Add(d)
	one := func(i int) error {
		mu.Lock()
		passed.asks(i)
		mu.Unlock()
		asked := time.Now()
		h, err := sessions[i].Lock(ctx, key)
		if err != nil {
			mu.Lock()
			waits.add(time.Since(asked))
			mu.Unlock()
			return err
		}
		got := time.Now()
		mu.Lock()
		holders++
		if holders > 1 {
			overlaps++
		}
		total++
		passed.gets(i)
		if got.Before(end) { // after the end some sessions have stopped asking, so the others get more
			counts[i]++
		}
		waits.add(got.Sub(asked))
		if i == 0 {
			first.add(got.Sub(asked))
		}
		if !released.IsZero() {
			handoffs.add(got.Sub(released))
			if client[i] != last {
				between.add(got.Sub(released))
			}
		}
		last = client[i]
		mu.Unlock()
		if l.hold > 0 {
			time.Sleep(l.hold)
		}
		mu.Lock()
		holders--
		released = time.Now()
		mu.Unlock()
		return h.Unlock(ctx)
	}
	var wg sync.WaitGroup
	for i := range sessions {
		wg.Go(func() {
			for time.Now().Before(end) {
				if err := one(i); err != nil {
					mu.Lock()
					if errors.Is(err, context.DeadlineExceeded) {
						stuck++
					} else {
						failed = err
					}
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	f, w := m.stop(total)
	if failed != nil {
		return nil, work{}, failed
	}
	within := 0
	for _, c := range counts {
		within += c
	}
	fair := float64(max(1, within)) / float64(n) // in a smoke test on a busy machine there may be none
	share := micros(d) / fair
	f["rate"] = float64(within) / d.Seconds()
	f["passed"] = 100 * float64(passed.over) / float64(max(1, total))
	f["overlaps"], f["stuck"] = float64(overlaps), float64(stuck)
	for _, c := range counts {
		f["unfairness"] = max(f["unfairness"], 100*(float64(c)/fair-1), 100*(1-float64(c)/fair))
	}
	f["wait_p99_us"], f["wait_max_us"] = waits.quantile(.99), waits.quantile(1)
	f["wait_shares"] = f["wait_max_us"] / share
	f["wait_over_ms"] = (f["wait_max_us"] - share) / 1000
	f["least"], f["most"] = float64(slices.Min(counts))/d.Seconds(), float64(slices.Max(counts))/d.Seconds()
	f["first_p99_us"], f["between_p50_us"] = first.quantile(.99), between.quantile(.5)
	f["first_of_bound"] = f["first_p99_us"] / (micros(localTime+2*l.hold) + 2*f["between_p50_us"])
	f["handoff_p50_us"], f["handoff_p99_us"] = handoffs.quantile(.5), handoffs.quantile(.99)
	return f, w, nil
}

// queueCheck counts how often a client was passed over. The count is zero if clients take turns in the order in which
// they asked, even if single waits are long because a client had to wait for the processor.
type queueCheck struct {
	n, over int
	last    []int // by client: its last acquisition, counted from 1
	ask     []int // by client: the number of acquisitions when it asked; -1 if it does not wait
}

func newQueueCheck(n int) *queueCheck {
	q := &queueCheck{last: make([]int, n), ask: make([]int, n)}
	for i := range q.ask {
		q.ask[i] = -1
	}
	return q
}

func (q *queueCheck) asks(i int) { q.ask[i] = q.n }

func (q *queueCheck) gets(i int) {
	q.ask[i] = -1
	for _, asked := range q.ask {
		if asked >= 0 && q.last[i] > asked {
			q.over++
		}
	}
	q.n++
	q.last[i] = q.n
}

// meet has every session wait for the same key and lock it, so that connections, scripts and subscriptions are ready.
func meet(ctx context.Context, sessions []session) error {
	failures := make(chan error, len(sessions))
	for _, s := range sessions {
		go func() {
			failures <- func() error {
				for range 3 {
					h, err := s.Lock(ctx, "warm-up")
					if err != nil {
						return err
					}
					time.Sleep(hold)
					if err := h.Unlock(ctx); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	var err error
	for range sessions {
		err = errors.Join(err, <-failures)
	}
	return err
}
