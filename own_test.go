package locker_test

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/semaphore"
)

// A lease is wanted if a caller of the Client waits for it, also one that wants something of its group, and if the
// program has asked and the store has told.
func TestClientTellsWhatOthersWant(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := memory.NewBackend()
		c, other := locker.NewClient(store), locker.NewClient(store)
		defer other.Close()
		defer c.Close()
		permits := semaphore.New(c, 1)
		if _, err := permits.Lock(t.Context(), "permits"); err != nil {
			t.Fatal(err)
		}
		hold := func(key string) locker.Lease {
			l, err := c.Lock(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		hold("nobody's")
		hold("own")
		theirs := hold("theirs")
		hold("not asked")
		locker.Wanted(theirs)
		for _, wait := range []func(ctx context.Context) error{
			func(ctx context.Context) error { _, err := permits.Lock(ctx, "permits"); return err },
			func(ctx context.Context) error { _, err := c.Lock(ctx, "own"); return err },
			func(ctx context.Context) error { _, err := other.Lock(ctx, "theirs"); return err },
			func(ctx context.Context) error { _, err := other.Lock(ctx, "not asked"); return err },
		} {
			go func() { _ = wait(t.Context()) }()
		}
		synctest.Wait()
		var wanted []string
		for l := range c.OwnLeases() {
			if l.Wanted {
				wanted = append(wanted, l.Key)
			}
		}
		slices.Sort(wanted)
		if want := []string{"own", "theirs", "{permits}#permits"}; !slices.Equal(wanted, want) {
			t.Errorf("wanted: seen %q, want %q", wanted, want)
		}
	})
}

// With the option, a Client tells which line has asked for a lock, also of a caller that got it from another one, and
// behind middleware. Without it, nothing is kept.
func TestClientTellsWhoHasAsked(t *testing.T) {
	t.Run("handed over", func(t *testing.T) { tellsWhoHasAsked(t, locker.Caller()) })
	t.Run("in the queue of the store", func(t *testing.T) {
		tellsWhoHasAsked(t, locker.Caller(), locker.NoLocalHandover())
	})
}

func tellsWhoHasAsked(t *testing.T, opts ...locker.Option) {
	virtual.Test(t, func(t *testing.T) {
		c := memory.New()
		defer c.Close()
		asks := locker.Wrap(c, locker.Defaults(opts...))
		callers := func() (leases, waits []string) {
			for l := range c.OwnLeases() {
				leases = append(leases, l.Caller)
			}
			for w := range c.OwnWaits() {
				waits = append(waits, w.Caller)
			}
			return leases, waits
		}
		first, err := asks.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		go second(t, asks)
		synctest.Wait()
		go third(t, asks)
		synctest.Wait()
		here := func(got []string, name string) {
			t.Helper()
			if len(got) != 1 || !strings.Contains(got[0], name) || !strings.Contains(got[0], "own_test.go:") {
				t.Errorf("seen %q, want a line of %s", got, name)
			}
		}
		leases, waits := callers()
		here(leases, "tellsWhoHasAsked")
		here(waits, "locker_test.second")
		_ = first.Unlock(t.Context())
		synctest.Wait()
		leases, waits = callers()
		here(leases, "locker_test.second")
		here(waits, "locker_test.third")
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		leases, _ = callers()
		here(leases, "locker_test.third")
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if _, err := c.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if leases, _ := callers(); len(leases) != 1 || leases[0] != "" {
			t.Errorf("without the option: seen %q", leases)
		}
	})
}

func second(t *testing.T, l locker.Locker) {
	lease, err := l.Lock(t.Context(), "k")
	if err != nil {
		t.Error(err)
		return
	}
	time.Sleep(10 * time.Millisecond)
	_ = lease.Unlock(t.Context())
}

func third(t *testing.T, l locker.Locker) {
	lease, err := l.Lock(t.Context(), "k")
	if err != nil {
		t.Error(err)
		return
	}
	time.Sleep(10 * time.Millisecond)
	_ = lease.Unlock(t.Context())
}

// A Client tells what it holds, and for which keys its calls wait since when, whether they ask the store or come after
// others.
func TestClientTellsWhatItHasAndWaitsFor(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		store := memory.NewBackend()
		c, other := locker.NewClient(store), locker.NewClient(store)
		defer other.Close()
		defer c.Close()
		p, _ := locker.As[inspect.Process](c)
		began := time.Now()
		mine, err := c.Lock(t.Context(), "mine", locker.TTL(time.Minute), locker.Label("me"))
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := other.Lock(t.Context(), "theirs", locker.TTL(time.Minute), locker.Label("they"))
		if err != nil {
			t.Fatal(err)
		}
		permits := semaphore.New(c, 1)
		permit, err := permits.Lock(t.Context(), "permits")
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		wait := func(lock func(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error), key string) {
			go func() { _, _ = lock(ctx, key) }()
			synctest.Wait()
			time.Sleep(time.Second)
		}
		wait(c.Lock, "theirs")
		wait(func(ctx context.Context, key string, _ ...locker.Option) (locker.Lease, error) {
			return c.Lock(ctx, key, locker.TTL(time.Minute)) // which the first one cannot hand its lock over to
		}, "theirs")
		wait(c.Lock, "mine")
		wait(func(ctx context.Context, key string, _ ...locker.Option) (locker.Lease, error) {
			return nil, func() error { _, err := permits.Lock(ctx, key); return err }()
		}, "permits")

		waits := func() (all []inspect.OwnWait) {
			return slices.SortedFunc(p.OwnWaits(), func(a, b inspect.OwnWait) int { return a.Since.Compare(b.Since) })
		}
		want := []inspect.OwnWait{
			{Key: "theirs", Calls: 2, Since: began, Holder: "they"},
			{Key: "mine", Calls: 1, Since: began.Add(2 * time.Second), Holder: "me"},
			{Key: "{permits}#permits", Calls: 1, Since: began.Add(3 * time.Second), Holder: waits()[2].Holder},
		}
		if seen := waits(); !slices.Equal(seen, want) {
			t.Errorf("waits: seen %+v, want %+v", seen, want)
		}
		leases := slices.SortedFunc(p.OwnLeases(), func(a, b inspect.OwnLease) int { return -len(a.Label) + len(b.Label) })
		if len(leases) != 2 {
			t.Fatalf("leases: seen %+v, want two", leases)
		}
		l := leases[1]
		if l.Key != "mine" || l.Label != "me" || l.Owner != mine.Token()[:8] || l.Fence != mine.Fence() ||
			!l.Since.Equal(began) || l.Until.After(mine.Until()) || l.Until.Before(mine.Until().Add(-time.Second)) {
			t.Errorf("seen %+v, want the lease of mine, until about %v", l, mine.Until())
		}

		for range p.OwnWaits() { // which holds up no other call
			free, err := c.Lock(t.Context(), "free")
			if err != nil {
				t.Fatal(err)
			}
			_ = free.Unlock(t.Context())
		}

		// The second call comes to the front, and has waited for as long as it has.
		_ = theirs.Unlock(t.Context())
		synctest.Wait()
		if seen := waits(); seen[0].Key != "theirs" || seen[0].Calls != 1 || !seen[0].Since.Equal(began.Add(time.Second)) {
			t.Errorf("when the first call has the lock: seen %+v", seen)
		}
		leave()
		synctest.Wait()
		if seen := waits(); len(seen) > 0 {
			t.Errorf("when nobody waits: seen %+v", seen)
		}
		_ = mine.Unlock(t.Context())
		_ = permit.Unlock(t.Context())
		for l := range p.OwnLeases() {
			if l.Key != "theirs" {
				t.Errorf("when they were released: seen %+v", l)
			}
		}
	})
}

// However many leases a Client has, a look has each, but reads few of them before it shows these and others go on: no
// mutex is held for all of them.
func TestClientTellsWhatItHasInSteps(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		c := memory.New()
		defer c.Close()
		permits := semaphore.New(c, 1000)
		var all []locker.Lease
		for i := range 20_000 {
			lease, err := c.Lock(t.Context(), strconv.Itoa(i), locker.NoRenewal(), locker.TTL(time.Hour))
			if i%50 == 0 && err == nil {
				all = append(all, lease)
				lease, err = permits.Lock(t.Context(), "k", locker.NoRenewal(), locker.TTL(time.Hour))
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, lease)
		}
		seen := make(map[uint64]int)
		for l := range c.OwnLeases() {
			seen[l.Fence]++
		}
		for _, l := range all {
			if seen[l.Fence()] != 1 {
				t.Fatalf("%q was shown %d times", l.Key(), seen[l.Fence()])
			}
		}

		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range c.OwnLeases() {
			break
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 100_000 { // eight bytes for each would be more
			t.Errorf("the first lease was shown after %d bytes", used)
		}

		shown := 0
		for range c.OwnLeases() {
			if shown++; shown == 1 {
				for _, l := range all {
					if err := l.Unlock(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if shown > 100 {
			t.Errorf("%d leases were shown that ended at the first of them", shown)
		}
	})
}

// BenchmarkLooks measures acquisitions in memory while another goroutine looks at 100,000 leases again and again, and
// without that, in turn. It reports the medians of the ratios of the 99th and the 99.9th percentiles.
func BenchmarkLooks(b *testing.B) {
	c := memory.New()
	defer c.Close()
	for i := range 100_000 {
		if _, err := c.Lock(b.Context(), strconv.Itoa(i), locker.NoRenewal(), locker.TTL(time.Hour)); err != nil {
			b.Fatal(err)
		}
	}
	sorted := func() []time.Duration {
		took := make([]time.Duration, 100_000)
		for i := range took {
			began := time.Now()
			lease, err := c.TryLock(b.Context(), "k")
			if err != nil {
				b.Fatal(err)
			}
			_ = lease.Unlock(b.Context())
			took[i] = time.Since(began)
		}
		slices.Sort(took)
		return took
	}
	ratios := map[string][]float64{}
	for b.Loop() {
		alone := sorted()
		stop, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			for {
				for range c.OwnLeases() {
					select {
					case <-stop:
						return
					default:
					}
				}
			}
		}()
		beside := sorted()
		close(stop)
		<-over
		for name, at := range map[string]int{"p99": 99_000, "p99.9": 99_900} {
			ratios[name] = append(ratios[name], float64(beside[at])/float64(alone[at]))
		}
	}
	for name, all := range ratios {
		slices.Sort(all)
		b.ReportMetric(all[len(all)/2], name+"-ratio")
	}
}

// BenchmarkCaller measures what a lock in memory costs with the option, and without.
func BenchmarkCaller(b *testing.B) {
	for name, opts := range map[string][]locker.Option{"without": nil, "with": {locker.Caller()}} {
		b.Run(name, func(b *testing.B) {
			c := memory.New()
			defer c.Close()
			for b.Loop() {
				lease, err := c.Lock(b.Context(), "k", opts...)
				if err != nil {
					b.Fatal(err)
				}
				_ = lease.Unlock(b.Context())
			}
		})
	}
}
