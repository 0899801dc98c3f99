package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/natslock"
)

// locking waits for the lock of key. The caller then calls unlock.
type locking func(ctx context.Context, key string) (unlock func() error, err error)

// program is a contender with a connection of its own, as a program would have.
type program struct {
	js   jetstream.JetStream
	lock locking
}

// contenders are this package, and what programs write by hand with the key-value store of NATS.
var contenders = []struct {
	name string
	open func(b *testing.B, js jetstream.JetStream) locking
}{
	{"locker", func(b *testing.B, js jetstream.JetStream) locking {
		l := natslock.New(js)
		b.Cleanup(func() { _ = l.Close() })
		return func(ctx context.Context, key string) (func() error, error) {
			lease, err := l.Lock(ctx, key, locker.Label(""))
			if err != nil {
				return nil, err
			}
			return func() error { return lease.Unlock(ctx) }, nil
		}
	}},
	{"hand", func(b *testing.B, js jetstream.JetStream) locking {
		kv, err := js.CreateOrUpdateKeyValue(b.Context(), jetstream.KeyValueConfig{Bucket: "hand", TTL: 10 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		return func(ctx context.Context, key string) (func() error, error) {
			for {
				revision, err := kv.Create(ctx, key, []byte("me"))
				if err == nil {
					return func() error { return kv.Delete(ctx, key, jetstream.LastRevision(revision)) }, nil
				}
				if !errors.Is(err, jetstream.ErrKeyExists) && !errors.As(err, new(*jetstream.APIError)) {
					return nil, err
				}
				if err := deleted(ctx, kv, key); err != nil {
					return nil, err
				}
			}
		}
	}},
}

// deleted waits until key has no value.
func deleted(ctx context.Context, kv jetstream.KeyValue, key string) error {
	w, err := kv.Watch(ctx, key)
	if err != nil {
		return err
	}
	defer func() { _ = w.Stop() }()
	held := false
	for entry := range w.Updates() {
		switch {
		case entry != nil && entry.Operation() == jetstream.KeyValuePut:
			held = true
		case entry != nil || !held: // nil: that was all there is
			return nil
		}
	}
	return ctx.Err()
}

// BenchmarkBesideNATSByHand compares cycles of Lock and Unlock with those that programs write by hand, on one server.
// Both take turns of a fraction of a second, and the figures are medians of all turns: microseconds for a cycle, the
// messages that the server received and sent, and for many clients of one lock, the share of the client that was served
// least. ratio is that of the two times in the same round.
func BenchmarkBesideNATSByHand(b *testing.B) {
	for _, c := range []struct {
		name              string
		programs, callers int // of each
		one               bool
	}{
		{"own key, 1 goroutine", 1, 1, false},
		{"own keys, 128 goroutines", 1, 128, false},
		{"one key, 16 programs", 16, 1, true},
		{"one key, 2 programs", 2, 1, true}, // each cycle but the first is a hand-over
	} {
		b.Run(c.name, func(b *testing.B) {
			s := start(b)
			open := make([][]program, len(contenders))
			for i, contender := range contenders {
				for range c.programs {
					js := s.connect(b)
					open[i] = append(open[i], program{js, contender.open(b, js)})
				}
			}
			const rounds = 15
			times, ratios := make([][]float64, len(contenders)), make([]float64, 0, rounds)
			msgs, shares := make([][]float64, len(contenders)), make([][]float64, len(contenders))
			for b.Loop() {
				for round := range rounds + 1 {
					taken := make([]float64, len(contenders))
					for n := range contenders {
						i := (round + n) % len(contenders)
						t := turn(b, open[i], c.callers, c.one)
						if round == 0 { // connections and buckets begin to exist
							continue
						}
						taken[i] = t.perCycle
						times[i], msgs[i], shares[i] = append(times[i], t.perCycle), append(msgs[i], t.messages),
							append(shares[i], t.least)
					}
					if round > 0 {
						ratios = append(ratios, taken[1]/taken[0])
					}
				}
			}
			for i, contender := range contenders {
				b.ReportMetric(median(times[i]), contender.name+"-µs/cycle")
				b.ReportMetric(median(msgs[i]), contender.name+"-msgs/cycle")
				if c.one {
					b.ReportMetric(median(shares[i]), contender.name+"-least-share")
				}
			}
			b.ReportMetric(median(ratios), "hand/locker")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkLockAll measures a cycle with four keys: in one step, and one after the other.
func BenchmarkLockAll(b *testing.B) {
	for _, way := range []struct {
		name string
		of   func(l locker.Locker) locker.Locker
	}{
		{"in one step", func(l locker.Locker) locker.Locker { return l }},
		{"in order", func(l locker.Locker) locker.Locker { return struct{ locker.Locker }{l} }},
	} {
		b.Run(way.name, func(b *testing.B) {
			client := natslock.New(start(b).js)
			defer client.Close()
			for b.Loop() {
				lease, err := locker.LockAll(b.Context(), way.of(client), []string{"a", "b", "c", "d"})
				if err != nil {
					b.Fatal(err)
				}
				if err := lease.Unlock(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// result is that of a turn.
type result struct {
	perCycle float64 // microseconds
	messages float64 // that the server received and sent, for a cycle
	least    float64 // cycles of the caller that had the fewest, as a part of the average
}

// turn lets the callers of all programs lock and unlock for a while.
func turn(b *testing.B, programs []program, callers int, one bool) result {
	const long = 300 * time.Millisecond
	before, start := traffic(programs), time.Now()
	cycles := make([]int, len(programs)*callers)
	var running sync.WaitGroup
	for i := range cycles {
		key := "one"
		if !one {
			key = fmt.Sprint("own", i)
		}
		running.Go(func() {
			for time.Since(start) < long {
				unlock, err := programs[i/callers].lock(b.Context(), key)
				if err != nil {
					b.Error(err)
					return
				}
				if err := unlock(); err != nil {
					b.Error(err)
				}
				cycles[i]++
			}
		})
	}
	running.Wait()
	sum := 0
	for _, n := range cycles {
		sum += n
	}
	return result{
		perCycle: float64(time.Since(start).Microseconds()) / float64(sum),
		messages: float64(traffic(programs)-before) / float64(sum),
		least:    float64(slices.Min(cycles)) * float64(len(cycles)) / float64(sum),
	}
}

func traffic(programs []program) (n uint64) {
	for _, p := range programs {
		stats := p.js.Conn().Stats()
		n += stats.InMsgs + stats.OutMsgs
	}
	return n
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}
