package fence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/semaphore"
)

// roundTripper sends to a handler, which sees nothing of the sender's context.
type roundTripper struct{ http.Handler }

func (rt roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	rt.ServeHTTP(w, r.WithContext(context.Background()))
	return w.Result(), nil
}

// register is a resource in memory that keeps the greatest token.
type register map[string]uint64

func (seen register) enter(_ context.Context, holds ...fence.Hold) error {
	for _, h := range holds {
		if seen[h.Resource] > h.Token {
			return fmt.Errorf("entering: %w", &fence.StaleError{Resource: h.Resource, Token: h.Token, Seen: seen[h.Resource]})
		}
		seen[h.Resource] = h.Token
	}
	return nil
}

// gate lets requests into the resources, and answers with the holds that the handler has found.
func gate(resources []string, enter func(context.Context, ...fence.Hold) error, ahead time.Duration) http.Handler {
	h := fence.HTTP{Enter: enter, Ahead: ahead, Resources: func(*http.Request) []string { return resources }}
	return h.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, hold := range fence.HoldsFrom(r.Context()) {
			_, _ = fmt.Fprintf(w, "%q=%d ", hold.Resource, hold.Token)
		}
	}))
}

func get(ctx context.Context, h http.Handler, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	r.Header[fence.Header] = header
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// What a holder sends is what the handler finds, after the resources have been entered.
func TestHoldsTravelByHTTP(t *testing.T) {
	l := memory.New()
	t.Cleanup(func() { _ = l.Close() })
	odd := "a=b, c;\x00\r\n%2f/\xff{ü} "
	all, err := locker.LockAll(t.Context(), l, []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = all.Unlock(context.Background()) })
	seen := register{}
	client := http.Client{Transport: fence.Transport{Base: roundTripper{gate([]string{odd, "b"}, seen.enter, 0)}}}
	holds := fence.Of(all)
	holds[0].Resource = odd
	ctx := fence.WithHolds(t.Context(), holds...)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://s", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	found, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	want := fmt.Sprintf("%q=%d %q=%d ", odd, all.FenceOf("a"), "b", all.FenceOf("b"))
	if string(found) != want || err != nil {
		t.Errorf("the handler has found %s, want %s, %v", found, want, err)
	}
	if seen[odd] != all.FenceOf("a") || seen["b"] != all.FenceOf("b") || len(seen) != 2 {
		t.Errorf("entered: %v", seen)
	}
	if r.Header.Get(fence.Header) != "" {
		t.Error("the caller's request was changed")
	}
}

// What a holder may not send is refused before it is sent. All else is found by the handler as it was.
func FuzzHeader(f *testing.F) {
	f.Add("account:42", uint64(1795397069897728), "b")
	f.Add("", uint64(1), "b")
	f.Add("a", uint64(1), "")
	f.Add("a", uint64(1), "a")
	f.Add("a", uint64(0), "b")
	f.Add(",=%", uint64(math.MaxUint64), "\x00")
	f.Fuzz(func(t *testing.T, one string, token uint64, two string) {
		holds := []fence.Hold{{Resource: one, Token: token}, {Resource: two, Token: 7}}
		var got []fence.Hold
		h := gate([]string{one, two}, func(_ context.Context, holds ...fence.Hold) error {
			got = holds
			return nil
		}, -1)
		r := httptest.NewRequestWithContext(fence.WithHolds(t.Context(), holds...), http.MethodGet, "/", nil)
		resp, err := fence.Transport{Base: roundTripper{h}}.RoundTrip(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		if one == "" || two == "" || one == two || token == 0 {
			if got != nil || !errors.Is(err, locker.ErrInvalid) && !errors.Is(err, fence.ErrNoToken) {
				t.Errorf("%+v: entered %+v, %v", holds, got, err)
			}
			return
		}
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
		for _, want := range holds {
			if !slices.Contains(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
	})
}

// A request without holds goes as it is, and one whose hold has no token does not go.
func TestTransportWithoutTokens(t *testing.T) {
	l := memory.New()
	t.Cleanup(func() { _ = l.Close() })
	var sent []string
	transport := fence.Transport{Base: roundTripper{http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		sent = append(sent, r.Header.Get(fence.Header))
	})}}
	send := func(ctx context.Context) error {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader("body"))
		resp, err := transport.RoundTrip(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	if err := send(t.Context()); err != nil {
		t.Error(err)
	}
	permit := fence.Of(lock(t, semaphore.New(l, 3), "p"))
	if err := send(fence.WithHolds(t.Context(), permit...)); !errors.Is(err, fence.ErrNoToken) {
		t.Error(err)
	}
	if !slices.Equal(sent, []string{""}) {
		t.Errorf("sent: %q", sent)
	}
}

func TestAnswersInPlaceOfTheHandler(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var log strings.Builder
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		defer slog.SetDefault(before)
		now := uint64(time.Now().UnixMicro())
		in := func(d time.Duration) string { return fmt.Sprint("a=", now+uint64(d.Microseconds())) }
		down := func(context.Context, ...fence.Hold) error { return errors.New("dial tcp 10.0.0.7") }
		seen := register{"a": 5}
		for _, tt := range []struct {
			header []string
			ahead  time.Duration
			enter  func(context.Context, ...fence.Hold) error
			want   int
			logged bool
		}{
			{header: []string{"a=5"}, want: 200},
			{header: []string{" ,a=6 ,\tb=7"}, want: 200},
			{header: []string{"b=7", "a=6"}, want: 200},
			{header: []string{"%61=6"}, want: 200},
			{header: []string{"a=5"}, want: 412},
			{want: 428},
			{header: []string{"b=7"}, want: 428},
			{header: []string{"a"}, want: 400},
			{header: []string{"a="}, want: 400},
			{header: []string{"a=0"}, want: 400},
			{header: []string{"a=-1"}, want: 400},
			{header: []string{"a=+7"}, want: 400},
			{header: []string{"a=0x7"}, want: 400},
			{header: []string{"a=18446744073709551616"}, want: 400},
			{header: []string{"a=7, a=7"}, want: 400},
			{header: []string{"a=7", "%61=7"}, want: 400},
			{header: []string{"%6=7"}, want: 400},
			{header: []string{"a=6"}, enter: down, want: 503, logged: true},
			{header: []string{in(time.Minute)}, want: 200},
			{header: []string{in(time.Minute + time.Microsecond)}, want: 400, logged: true},
			{header: []string{in(math.MaxInt64)}, want: 400, logged: true},
			{header: []string{in(time.Hour)}, ahead: time.Hour, want: 200},
			{header: []string{in(2 * time.Hour)}, ahead: time.Hour, want: 400, logged: true},
			{header: []string{"a=" + strconv.FormatUint(math.MaxUint64, 10)}, ahead: -1, want: 200},
		} {
			log.Reset()
			enter := tt.enter
			if enter == nil {
				enter = seen.enter
			}
			w := get(t.Context(), gate([]string{"a"}, enter, tt.ahead), tt.header...)
			if w.Code != tt.want || w.Header().Get("Retry-After") != "" {
				t.Errorf("%q: %d %s, want %d", tt.header, w.Code, w.Body, tt.want)
			}
			if (log.Len() > 0) != tt.logged {
				t.Errorf("%q: logged %q", tt.header, log.String())
			}
			const told = `"a": the fencing token is stale: 5, and the resource has seen 6`
			if w.Code == 412 && !strings.Contains(w.Body.String(), told) {
				t.Errorf("the client is told %q", w.Body)
			}
			if strings.Contains(w.Body.String(), "10.0.0.7") {
				t.Errorf("the client is told %q", w.Body)
			}
		}
		if len(seen) != 1 {
			t.Errorf("entered: %v", seen)
		}
		for _, resources := range [][]string{nil, {""}, {"a", "a"}} {
			if w := get(t.Context(), gate(resources, seen.enter, -1), "a=7, =7"); w.Code != 400 {
				t.Errorf("%q: %d", resources, w.Code)
			}
		}
	})
}
