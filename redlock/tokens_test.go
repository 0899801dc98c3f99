package redlock

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/simnode"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/internal/testing/wire"
)

// network does to commands what networks and servers do. All its times are virtual.
type network struct {
	mu    sync.Mutex
	rnd   *rand.Rand
	down  map[*simnode.Node]bool
	late  sync.WaitGroup // executions that nobody waits for
	count map[string]int // faults, by kind
}

func (w *network) chance(kind string, p float64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rnd.Float64() >= p {
		return false
	}
	w.count[kind]++
	return true
}

func (w *network) some(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rnd.Int64N(int64(d)))
}

// later executes a command at a time when nobody expects it any more, if the node is up then.
func (w *network) later(n *simnode.Node, execute func() []drivers.Reply) {
	w.late.Go(func() {
		time.Sleep(w.some(500 * time.Millisecond))
		if !w.isDown(n) {
			execute()
		}
	})
}

func (w *network) isDown(n *simnode.Node) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.down[n]
}

// refused is what drivers say of a server that is down; after it, nodes are not dialled for a while.
var refused = drivers.NotSent(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})

func (w *network) deliver(n *simnode.Node) simnode.Network {
	return func(_ context.Context, cmds []drivers.Command, execute func() []drivers.Reply) ([]drivers.Reply, error) {
		for _, cmd := range cmds {
			if wire.Calls(cmd, "raise") {
				w.chance("raised", 1)
			}
		}
		time.Sleep(50*time.Microsecond + w.some(200*time.Microsecond))
		switch {
		case w.isDown(n):
			return nil, refused
		case w.chance("request lost", 0.01):
			return nil, io.EOF
		case w.chance("executed late", 0.02):
			w.later(n, execute)
			return nil, io.EOF
		case w.chance("slow", 0.02):
			time.Sleep(w.some(300 * time.Millisecond))
			if w.isDown(n) {
				return nil, io.EOF
			}
		}
		replies := execute()
		if w.chance("executed again", 0.03) {
			w.later(n, execute)
		}
		time.Sleep(w.some(200 * time.Microsecond))
		if w.chance("reply lost", 0.02) {
			return nil, io.EOF
		}
		return replies, nil
	}
}

// hold is one acquisition as its client saw it.
type hold struct {
	key        string
	start, end time.Time // of the call that acquired
	token      uint64
	by         string // owner token
}

// Tokens are unique, and an acquisition that starts after another one returned has the greater token, whatever happens
// to messages and keys, and although nodes lose their data, one at a time and for longer than a quantum.
//
// LOCKER_ACQUISITIONS sets how many acquisitions to make, LOCKER_SEED what happens.
func TestTokensUnderFaults(t *testing.T) {
	want := 4000
	if s := os.Getenv("LOCKER_ACQUISITIONS"); s != "" {
		want, _ = strconv.Atoi(s)
	}
	seed := rand.Uint64()
	if s := os.Getenv("LOCKER_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	for _, n := range short.Part(t, 1, []int{3, 5}) { // nodes
		t.Run(strconv.Itoa(n)+" nodes", func(t *testing.T) {
			began := time.Now()
			virtual.Test(t, func(t *testing.T) {
				began := time.Now()
				w := &network{rnd: rand.New(rand.NewPCG(seed, uint64(n))), down: map[*simnode.Node]bool{}, count: map[string]int{}}
				holds := w.play(t, n, want/2)
				checkTokens(t, holds)
				t.Logf("seed %d: %d acquisitions in %v of virtual time; faults: %v", seed, len(holds),
					time.Since(began).Round(time.Second), w.count)
				for _, kind := range []string{"request lost", "executed late", "slow", "executed again", "reply lost",
					"keys expired early", "node lost its data", "raised"} {
					if w.count[kind] < 10 {
						t.Errorf("only %d times %q: the test shows little", w.count[kind], kind)
					}
				}
			})
			t.Logf("%v of real time", time.Since(began).Round(time.Millisecond))
		})
	}
}

func (w *network) play(t *testing.T, n, want int) (holds []hold) {
	nodes := make([]*simnode.Node, n)
	for i := range nodes {
		nodes[i] = simnode.New()
		nodes[i].Skew = w.some(20*time.Millisecond) - 10*time.Millisecond
	}
	clients := make([]*locker.Client, 4)
	for i := range clients {
		ds := make([]drivers.Driver, n)
		for j, node := range nodes {
			ds[j] = node.Driver(w.deliver(node))
		}
		clients[i] = New(ds, Logger(slog.New(slog.DiscardHandler)), Timeout(400*time.Millisecond))
	}
	var mu sync.Mutex // guards holds
	stop := make(chan struct{})
	stopped := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(holds) >= want
	}
	var workers, nemesis sync.WaitGroup
	for _, c := range clients {
		for range 2 {
			workers.Go(func() {
				for !stopped() {
					key := []string{"a", "b", "c"}[w.some(3)]
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond+w.some(2*time.Second))
					start := time.Now()
					l, err := c.Lock(ctx, key, locker.TTL(100*time.Millisecond+w.some(200*time.Millisecond)), locker.NoRenewal())
					cancel()
					if err != nil {
						// Nodes at rest refuse at once, and until they have rested: without a pause no time would pass.
						time.Sleep(time.Millisecond + w.some(5*time.Millisecond))
						continue
					}
					mu.Lock()
					holds = append(holds, hold{key, start, time.Now(), l.Fence(), l.Token()})
					mu.Unlock()
					time.Sleep(w.some(5 * time.Millisecond))
					if w.chance("extended", 0.2) {
						_ = l.Extend(t.Context())
					}
					if !w.chance("holder died", 0.03) {
						_ = l.Unlock(t.Context())
					}
				}
			})
		}
	}
	nemesis.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(w.some(200 * time.Millisecond)):
			}
			node := nodes[w.some(time.Duration(n))]
			if w.chance("keys expired early", 0.7) {
				node.Expire(func(string) bool { return w.chance("key", 0.5) })
				continue
			}
			// A restart without persistence. It takes longer than the clocks differ plus a quantum.
			w.chance("node lost its data", 1)
			w.set(node, true)
			node.Flush()
			time.Sleep(100 * time.Millisecond)
			w.set(node, false)
		}
	})
	workers.Wait()
	close(stop)
	nemesis.Wait()
	for _, c := range clients {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	w.late.Wait()
	return holds
}

func (w *network) set(n *simnode.Node, down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down[n] = down
}

// checkTokens checks that tokens are unique per key, and greater than those of all acquisitions that had returned
// before the call began.
func checkTokens(t *testing.T, holds []hold) {
	t.Helper()
	if len(holds) == 0 {
		t.Fatal("nothing was acquired")
	}
	byKey := map[string][]hold{}
	for _, h := range holds {
		byKey[h.key] = append(byKey[h.key], h)
	}
	for key, hs := range byKey {
		seen := map[uint64]string{}
		for _, h := range hs {
			if other, dup := seen[h.token]; dup && other != h.by {
				t.Errorf("key %s: token %d was issued twice", key, h.token)
			}
			seen[h.token] = h.by
		}
		returned := slices.Clone(hs)
		slices.SortFunc(returned, func(a, b hold) int { return a.end.Compare(b.end) })
		slices.SortFunc(hs, func(a, b hold) int { return cmp.Or(a.start.Compare(b.start), a.end.Compare(b.end)) })
		var greatest hold
		for i := 0; len(hs) > 0; hs = hs[1:] {
			for i < len(returned) && returned[i].end.Before(hs[0].start) {
				if returned[i].token > greatest.token {
					greatest = returned[i]
				}
				i++
			}
			if hs[0].token <= greatest.token {
				t.Errorf("key %s: token %d, of an acquisition that began %v after one with token %d had returned",
					key, hs[0].token, hs[0].start.Sub(greatest.end), greatest.token)
			}
		}
	}
}
