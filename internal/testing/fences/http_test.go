package fences_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/fence"
	"github.com/golocker/locker/internal/testing/redistest"
)

// service has an account in a Redis, and lets only holders of its lock in.
type service struct {
	fences fence.Redis
	pause  func() // in the handler that writes, before it does
	checks bool   // the handler checks its write
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		replies, err := s.fences.Driver.Do(r.Context(), drivers.Command{"GET", balanceKey})
		if err != nil {
			http.Error(w, "", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, replies[0].(string))
		return
	}
	body, _ := io.ReadAll(r.Body)
	s.pause()
	var err error
	if s.checks {
		err = s.fences.Write(r.Context(), fence.HoldsFrom(r.Context()), value(string(body)))
	} else {
		_, err = s.fences.Driver.Do(r.Context(), drivers.Command{"SET", balanceKey, string(body)})
	}
	switch {
	case errors.Is(err, fence.ErrStale):
		http.Error(w, err.Error(), http.StatusPreconditionFailed)
	case err != nil:
		http.Error(w, "", http.StatusServiceUnavailable)
	}
}

// A request that becomes late in the handler is refused by the write of the handler, and by nothing else.
func TestLateInTheHandler(t *testing.T) {
	s := redistest.Start(t)
	for _, checks := range []bool{true, false} {
		s.Cmd(t, "FLUSHALL")
		s.Cmd(t, "SET", balanceKey, "1")
		account42 := &service{fences: goredis(t, s.Addr()), pause: nothing, checks: checks}
		resources := func(*http.Request) []string { return []string{account} }
		gate := fence.HTTP{Resources: resources, Enter: account42.fences.Enter}
		server := httptest.NewServer(gate.Handler(account42))
		t.Cleanup(server.Close)
		base := &http.Transport{}
		t.Cleanup(base.CloseIdleConnections)
		client := &http.Client{Transport: fence.Transport{Base: base}}
		send := func(token uint64, method, body string, want int) string {
			t.Helper()
			ctx := fence.WithHolds(context.Background(), hold(token)...)
			r, err := http.NewRequestWithContext(ctx, method, server.URL, strings.NewReader(body))
			must(t, err)
			resp, err := client.Do(r)
			must(t, err)
			text, err := io.ReadAll(resp.Body)
			must(t, errors.Join(err, resp.Body.Close()))
			if resp.StatusCode != want {
				t.Errorf("checks %v: %s with %d: %s", checks, method, token, resp.Status)
			}
			return string(text)
		}
		send(5, "GET", "", 200)
		account42.pause = func() {
			account42.pause = nothing
			send(6, "GET", "", 200)
			send(6, "PUT", "six", 200)
		}
		want, late := "six", 412
		if !checks {
			want, late = "five", 200 // what is lost if the handler only enters
		}
		send(5, "PUT", "five", late)
		if got := s.Cmd(t, "GET", balanceKey); got != want {
			t.Errorf("checks %v: the account has %v", checks, got)
		}
		send(5, "GET", "", 412)
		if got := send(6, "GET", "", 200); got != want {
			t.Errorf("checks %v: read %v", checks, got)
		}
	}
}
