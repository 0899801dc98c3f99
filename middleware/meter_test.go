package middleware_test

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/golocker/locker"
)

// meter is a middleware that counts the calls of the wrapped Locker in each second.
type meter struct {
	mu     sync.Mutex
	start  time.Time
	counts []int // since start
}

func (m *meter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start, m.counts = time.Now(), nil
}

func (m *meter) count() {
	m.mu.Lock()
	defer m.mu.Unlock()
	second := int(time.Since(m.start) / time.Second)
	for len(m.counts) <= second {
		m.counts = append(m.counts, 0)
	}
	m.counts[second]++
}

// taken returns the counts so far.
func (m *meter) taken() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]int(nil), m.counts...)
}

func (m *meter) middleware(next locker.Locker) locker.Locker { return metered{next, m} }

type metered struct {
	locker.Locker
	m *meter
}

func (l metered) Unwrap() locker.Locker { return l.Locker }

func (l metered) Lock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	l.m.count()
	lease, err := l.Locker.Lock(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	return meteredLease{lease, l.m}, nil
}

type meteredLease struct {
	locker.Lease
	m *meter
}

func (l meteredLease) Unlock(ctx context.Context) error {
	l.m.count()
	return l.Lease.Unlock(ctx)
}

// lineCounter counts the lines that are logged.
type lineCounter struct{ n atomic.Int64 }

func (w *lineCounter) Write(p []byte) (int, error) {
	w.n.Add(1)
	return len(p), nil
}
