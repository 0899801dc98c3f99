package lockdebug_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockdebug"
	"github.com/golocker/locker/memory"
)

// answer is what the handler has sent, and calls the Client meanwhile.
type answer struct {
	*httptest.ResponseRecorder
	c *locker.Client
}

func (a answer) Write(b []byte) (int, error) {
	lease, err := a.c.TryLock(httptest.NewRequest(http.MethodGet, "/", nil).Context(), "while the answer is sent")
	if err == nil {
		err = lease.Unlock(httptest.NewRequest(http.MethodGet, "/", nil).Context())
	}
	if err != nil {
		return 0, err
	}
	return a.ResponseRecorder.Write(b)
}

func get(t *testing.T, c *locker.Client, url string) string {
	t.Helper()
	a := answer{httptest.NewRecorder(), c}
	lockdebug.Handler(c).ServeHTTP(a, httptest.NewRequest(http.MethodGet, url, nil))
	if a.Code != http.StatusOK || a.Body.Len() == 0 {
		t.Fatalf("seen the status %d and %q", a.Code, a.Body)
	}
	return a.Body.String()
}

// The page shows who has what and for how long, and who waits, the longest first, whatever keys contain. It holds
// nobody up while it is sent.
func TestPageShowsLeasesAndCallsThatWait(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		c := locker.NewClient(memory.NewBackend())
		defer c.Close()
		lock := func(key string) locker.Lease {
			l, err := c.Lock(t.Context(), key, locker.TTL(time.Minute), locker.Label("web-7:1"), locker.Caller())
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		first := lock("first <b>\x1b[31m")
		time.Sleep(2 * time.Second)
		second := lock("second")
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = lock("second").Unlock(t.Context())
		}()
		synctest.Wait()
		time.Sleep(3 * time.Second)

		page := get(t, c, "/debug/locks")
		for _, want := range []string{
			"2 leases\n", "5s        54.", `  "first <b>\x1b[31m"  `, `  "second"  `, "\ncalls wait for 1 keys\n",
			"3s         1      \"second\"  \"web-7:1\"  ok     github.com/golocker/locker/lockdebug_test.",
			"lockdebug_test.go:", "  no      ok", "  yes     ok",
		} {
			if !strings.Contains(page, want) {
				t.Errorf("seen no %q in\n%s", want, page)
			}
		}
		if strings.Index(page, "first <b>") > strings.Index(page, `"second"`) || strings.Contains(page, first.Token()) {
			t.Errorf("seen the wrong order, or a token, in\n%s", page)
		}
		var s struct {
			Held, Wanted int
			Leases       []struct {
				Key    string
				HeldMS int64 `json:"held_ms"`
			}
			Waits []struct{ Key string }
		}
		if err := json.Unmarshal([]byte(get(t, c, "/debug/locks?format=json")), &s); err != nil {
			t.Fatal(err)
		}
		if s.Held != 2 || s.Wanted != 1 || s.Leases[0].Key != first.Key() || s.Leases[0].HeldMS != 5000 ||
			s.Waits[0].Key != "second" {
			t.Errorf("seen %+v", s)
		}
		_ = second.Unlock(t.Context())
		<-done
		_ = first.Unlock(t.Context())
	})
}

// A process with many leases has a page of bounded size, with the oldest ones.
func TestPageIsBounded(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		c := locker.NewClient(memory.NewBackend())
		defer c.Close()
		for i := range 4500 {
			if _, err := c.Lock(t.Context(), strconv.Itoa(i), locker.NoRenewal(), locker.TTL(time.Hour)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		page := get(t, c, "/debug/locks")
		if n := strings.Count(page, "\n"); n < 1000 || n > 1010 || !strings.Contains(page, "4500 leases") ||
			!strings.Contains(page, ` "0" `) || !strings.Contains(page, ` "999" `) || strings.Contains(page, ` "1000" `) {
			t.Errorf("seen %d lines, want the oldest 1000 leases of 4500", n)
		}
	})
}
