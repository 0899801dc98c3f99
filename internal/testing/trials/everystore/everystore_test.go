package everystore

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	_ "github.com/golocker/locker/backends/etcdlock"
	_ "github.com/golocker/locker/backends/natslock"
	"github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/internal/testing/oncetest"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/storeurl"
	"github.com/golocker/locker/internal/testing/trials/everystore/deployment"
	"github.com/golocker/locker/memory"
)

func TestMain(m *testing.M) {
	oncetest.Main()
	goleak.VerifyTestMain(m, redistest.Lingering()...)
}

// ttls has the TTLs on stores that count them in seconds. On the others it is shorter.
var ttls = map[string]time.Duration{"etcd": time.Second, "NATS": time.Second}

const shortTTL = 300 * time.Millisecond

func migrate(tb testing.TB, url string) {
	db, err := pgx.Connect(tb.Context(), url)
	if err == nil {
		_, err = postgreslock.Migrate(tb.Context(), db)
	}
	if err != nil {
		tb.Fatal(err)
	}
	_ = db.Close(tb.Context())
}

// What clients of one store see makes sense, for every kind of store.
func TestHistories(t *testing.T) {
	stores := storeurl.Start(migrate)
	for _, d := range deployment.Records {
		stores[d.Name] = func(tb testing.TB) string { return d.Start(tb).URL() }
	}
	for name, start := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ttl, url := shortTTL, start(t)
			if known, ok := ttls[name]; ok {
				ttl = known
			}
			const plays = 5
			for n := 1; ; n++ { // on a busy machine one may show little
				h := play(t, ttl, func() closer {
					l, err := config.Open(t.Context(), url)
					if err != nil {
						t.Fatal(err)
					}
					return l
				})
				for _, v := range judge(h) {
					t.Error(v)
				}
				t.Logf("%d events in %v", len(h.Events()), h.Now().Round(time.Millisecond))
				few := enough(h)
				if len(few) == 0 || t.Failed() {
					return
				}
				if n == plays {
					t.Fatal(few)
				}
				t.Log(few)
			}
		})
	}
}

// spread makes room between tokens.
const spread = 1000

// twice sometimes grants a lock that somebody holds, with a greater token.
type twice struct {
	*memory.Backend
	last, refused atomic.Uint64
}

func (b *twice) grant(g backend.Grant, err error) (backend.Grant, error) {
	g.Fence *= spread
	b.last.Store(g.Fence)
	return g, err
}

func (b *twice) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	return b.grant(b.Backend.Queue(ctx, req, wait))
}

func (b *twice) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Acquire(ctx, req)
	if n := b.refused.Add(1); errors.Is(err, locker.ErrHeld) && n%20 == 0 {
		return backend.Grant{Fence: b.last.Load() + n%spread}, nil
	}
	return b.grant(g, err)
}

// repeating gives each token several times.
type repeating struct{ *memory.Backend }

func (b repeating) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	g, err := b.Backend.Queue(ctx, req, wait)
	g.Fence = (g.Fence + 3) / 4
	return g, err
}

func (b repeating) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Acquire(ctx, req)
	g.Fence = (g.Fence + 3) / 4
	return g, err
}

// hasty ends locks too early.
type hasty struct{ *memory.Backend }

func (b hasty) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	req.TTL /= 2
	return b.Backend.Queue(ctx, req, wait)
}

func (b hasty) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	req.TTL /= 2
	return b.Backend.Acquire(ctx, req)
}

// The rules, and the model, find stores that do not keep their promises.
func TestBrokenStoresAreFound(t *testing.T) {
	for name, tt := range map[string]struct {
		store backend.Backend
		rule  string
	}{
		"grants twice":          {&twice{Backend: memory.NewBackend()}, "ME"},
		"tokens repeat":         {repeating{memory.NewBackend()}, "UNIQ"},
		"locks end early":       {hasty{memory.NewBackend()}, "ME"},
		"nothing is wrong here": {memory.NewBackend(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := play(t, shortTTL, func() closer { return locker.NewClient(tt.store) })
			broken := map[string]int{}
			for _, v := range judge(h) {
				broken[v.Rule]++
			}
			t.Log(broken)
			for _, rule := range []string{tt.rule, "MODEL"} {
				if wrong := tt.rule != ""; (broken[rule] > 0) != wrong {
					t.Errorf("%s was broken %d times, expected: %v", rule, broken[rule], wrong)
				}
			}
		})
	}
}
