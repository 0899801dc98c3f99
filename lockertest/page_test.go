package lockertest_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/lockertest"
)

// The programs of docs/testing-your-code.md are in this file.
func TestThePageShowsTheseTests(t *testing.T) {
	page, err := os.ReadFile("../docs/testing-your-code.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("page_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) != 4 {
		t.Errorf("%d programs, want 4", len(blocks))
	}
	for _, block := range blocks {
		if code, _, _ := strings.Cut(block, "```"); !strings.Contains(string(source), code) {
			t.Errorf("page_test.go has no\n%s", code)
		}
	}
}

// job works until its context ends.
func job(ctx context.Context, l locker.Locker) error {
	return locker.Do(ctx, l, "job", func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
}

// handler answers a request under a lock.
type handler struct{ l locker.Locker }

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	lease, err := h.l.TryLock(r.Context(), "order:"+r.PathValue("id"))
	switch {
	case errors.Is(err, locker.ErrHeld):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, locker.ErrUnavailable):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		_ = lease.Unlock(r.Context())
	}
}

// worker does one piece of work.
func worker(ctx context.Context, l locker.Locker) error {
	return locker.Do(ctx, l, "work", func(context.Context) error { return nil })
}

func TestMyJobStopsWhenItsLockIsLost(t *testing.T) {
	store := lockertest.NewStore()
	go store.Lose(t.Context(), "job") // as soon as somebody has the lock
	if err := job(t.Context(), locker.NewClient(store)); !errors.Is(err, locker.ErrLost) {
		t.Errorf("the job ended with %v, want ErrLost", err)
	}
}

func TestMyHandlerAnswers503WhenTheStoreIsDown(t *testing.T) {
	store, w := lockertest.NewStore(), httptest.NewRecorder()
	store.Down()
	handler{locker.NewClient(store)}.ServeHTTP(w, httptest.NewRequest("POST", "/orders/42", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("the handler answered %d, want 503", w.Code)
	}
}

func TestMyWorkerWaitsWhileTheStoreIsSlow(t *testing.T) {
	store := lockertest.NewStore()
	store.Delay(300 * time.Millisecond)
	start := time.Now()
	if err := worker(t.Context(), locker.NewClient(store)); err != nil || time.Since(start) < 600*time.Millisecond {
		t.Errorf("the worker ended with %v after %v, want 300 ms for the lock and for its release", err, time.Since(start))
	}
}

func TestMyJobOutlivesAShortOutage(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // for the race detector, see below
	synctest.Test(t, func(t *testing.T) {
		store := lockertest.NewStore()
		l := locker.NewClient(store)
		defer l.Close()
		lease, err := l.Lock(t.Context(), "job") // its TTL is 10 s
		if err != nil {
			t.Fatal(err)
		}
		store.Down()
		time.Sleep(5 * time.Second)
		store.Up()
		time.Sleep(time.Hour)
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
