package single_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

func TestErrorsOfARealServer(t *testing.T) {
	t.Parallel()
	type setup struct {
		s *redistest.Server
		c *locker.Client
	}
	tests := []struct {
		name string
		do   func(t *testing.T, u setup) error
		want []error
		text string
	}{
		{"server down", func(t *testing.T, u setup) error {
			u.s.Kill()
			_, err := u.c.Lock(t.Context(), "k")
			if err == nil {
				return nil
			}
			_, err = u.c.Lock(t.Context(), "k") // the first may have found a connection that was still there
			return err
		}, []error{locker.ErrUnavailable}, "connection refused"},
		{"password missing", func(t *testing.T, u setup) error {
			// Some clients connect when they are made, and would not be made if they needed a password by then.
			operator, err := redis.Dial("tcp", u.s.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = operator.Close() }()
			_, refused := operator.Do("CONFIG", "SET", "requirepass", "secret")
			_, failed := operator.Do("CLIENT", "KILL", "TYPE", "normal") // all but this one
			if err := errors.Join(refused, failed); err != nil {
				t.Fatal(err)
			}
			_, err = u.c.Lock(t.Context(), "k")
			if err == nil {
				return nil
			}
			_, err = u.c.Lock(t.Context(), "k") // the first may have found a connection that was still there
			return err
		}, []error{locker.ErrUnavailable}, "NOAUTH"},
		{"read-only", func(t *testing.T, u setup) error {
			u.s.Cmd(t, "REPLICAOF", "127.0.0.1", "1")
			_, err := u.c.Lock(t.Context(), "k")
			return err
		}, []error{locker.ErrUnavailable}, "READONLY"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
				s := redistest.Start(t)
				err := tt.do(t, setup{s, closing(t, single.New(build(t, s.Addr()), single.Name(s.Addr()),
					single.Timeout(20*time.Second)))})
				wantErr(t, err, tt.want...)
				if !strings.Contains(fmt.Sprint(err), tt.text) {
					t.Errorf("error %q does not say %q", err, tt.text)
				}
			})
		})
	}
}

func TestWrongPasswordIsARefusal(t *testing.T) {
	s := redistest.Start(t, "--requirepass", "secret")
	for _, name := range drivers.Names() {
		d, err := drivers.Open(t.Context(), name, drivers.Config{Network: "tcp", Addr: s.Addr(), Password: "wrong-guess"})
		if err != nil {
			t.Fatal(err)
		}
		c := closing(t, single.New(d, single.Name(s.Addr())))
		_, err = c.Lock(t.Context(), "k")
		wantErr(t, err, locker.ErrUnavailable)
		if text := fmt.Sprint(err); !strings.Contains(text, "WRONGPASS") || !strings.Contains(text, s.Addr()) ||
			strings.Contains(text, "guess") {
			t.Errorf("%s: %q must name the reason and the server, and not the password", name, text)
		}
	}
}
