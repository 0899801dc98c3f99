package logging_test

import (
	"context"
	"log/slog"
	"os"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/logging"
)

func Example() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		Level: slog.LevelInfo,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "held" || a.Key == "fence" { // these differ in each run
				return slog.Attr{}
			}
			return a
		},
	}))
	ctx := context.Background()
	store := memory.NewBackend()
	c := locker.NewClient(store)
	defer c.Close()
	l := locker.Wrap(c, logging.New(logger))

	lease, _ := l.Lock(ctx, "orders:42")
	_ = lease.Unlock(ctx) // nothing is logged

	lease, _ = l.Lock(ctx, "orders:42")
	_ = store.Release(ctx, backend.Request{Key: "orders:42", Token: lease.Token()}) // somebody deletes the key
	_ = lease.Unlock(ctx)
	// Output:
	// level=WARN msg="lock lost" key=orders:42 reason=gone
}
