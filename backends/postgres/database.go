package postgres

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
)

// database is what a Backend needs to make requests, and the calls that are under way.
type database struct {
	options
	pool *pgxpool.Pool
	sql  statements

	open context.Context // ends when Close begins
	shut context.CancelFunc
	ctx  context.Context // of all requests; ends when Close has waited for long enough
	stop context.CancelFunc

	mu         sync.Mutex
	closed     bool
	reset      time.Time      // when leave closed the connections of the pool
	background sync.WaitGroup // calls and what they have left to do; Add with mu held while closed is false, or in a call
}

func newDatabase(pool *pgxpool.Pool, opts []Option) *database {
	o := newOptions(opts)
	b := &database{options: o, pool: pool, sql: newStatements(o.schema)}
	b.open, b.shut = context.WithCancel(context.Background())
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// enter begins a call. The caller must call background.Done when it ends.
func (b *database) enter() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return locker.ErrClosed
	}
	b.background.Add(1)
	return nil
}

// closeGrace is how long Close waits for requests in progress before it interrupts them.
const closeGrace = time.Second

// finish ends the waiting calls and the background work.
func (b *database) finish() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.shut()
	grace := time.AfterFunc(closeGrace, b.stop)
	b.background.Wait()
	grace.Stop()
	b.stop()
}

// Close ends the waiting calls and the background work. What an attempt has left in the store and could not be undone
// by then ends with its TTL.
func (b *database) Close() error {
	b.finish()
	b.closePool()
	return nil
}

// closePool closes the pool if nobody else uses it.
func (b *database) closePool() {
	if b.owned {
		b.pool.Close()
	}
}

// maxName is how many bytes of a name are stored as they are. An index cannot have much longer values.
const maxName = 1024

// name returns the name of the row for a key. A long name ends with a hash instead of its rest.
func (b *database) name(key string) []byte {
	name := []byte(b.prefix + key)
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256(name)
	return slices.Concat(name[:maxName], sum[:])
}
