package config_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
)

// TestRotationUnderLoad replaces the password, both certificates and the authority of a server while locks are taken,
// and closes all connections after each step. No lock may fail. The client retries, because a connection that is closed
// fails what is in flight on it. If new connections failed after a step, the test would wait in vain.
func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers.Names() {
		if driver[0] == 'x' { // of other tests of this package
			continue
		}
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			rotations := len(short.Part(t, 1, []int{1, 2, 3, 4, 5, 6, 7, 8}))
			r := startRotation(t)
			ctx, stop := context.WithCancel(t.Context())
			var load sync.WaitGroup
			var locks atomic.Int64
			for i := range 2 {
				l := open(t, r.url(driver)+"&retry=true&retry_base_delay=5ms")
				load.Go(func() { lockAgainAndAgain(ctx, t, l, fmt.Sprint(i), &locks) })
			}
			defer load.Wait()
			defer stop()
			for range rotations {
				for i, step := range r.steps(t) {
					step()
					r.server.Cmd(t, "CLIENT", "KILL", "TYPE", "normal")
					before := locks.Load()
					require.Eventually(t, func() bool { return t.Failed() || locks.Load() > before+4 },
						30*time.Second, time.Millisecond, "no lock after step %d", i)
				}
			}
		})
	}
}

// rotation is a server that wants a password and client certificates, and the files of its clients.
type rotation struct {
	server                *redistest.Server
	authority             *redistest.Authority
	dir                   string
	password              int
	ca, cert, key, secret string
}

func startRotation(t *testing.T) *rotation {
	r := &rotation{dir: t.TempDir()}
	r.server, _ = redistest.StartTLS(t, "--tls-auth-clients", "yes")
	r.authority = r.server.Authority()
	r.server.User(t, "locker", "on", ">password0", "~*", "+@all")
	cert, key := r.authority.Issue(t, time.Hour)
	r.ca, r.cert = r.write(t, "ca.pem", r.authority.PEM()), r.write(t, "client.pem", cert)
	r.key, r.secret = r.write(t, "client.key", key), r.write(t, "password", []byte("password0\n"))
	return r
}

// write writes a file in place, so that it is half written for a moment.
func (r *rotation) write(t *testing.T, name string, content []byte) string {
	return write(t, r.dir, name, content)
}

// rename replaces a file as a whole.
func (r *rotation) rename(t *testing.T, name string, content []byte) {
	require.NoError(t, os.Rename(write(t, r.dir, name+".new", content), filepath.Join(r.dir, name)))
}

// steps returns the steps of one rotation. After each of them, new connections must succeed.
func (r *rotation) steps(t *testing.T) []func() {
	old, next := r.authority, redistest.NewAuthority(t)
	r.authority = next
	r.password++
	password := fmt.Sprint("password", r.password)
	cert, key := next.Issue(t, time.Hour)
	both := slices.Concat(old.PEM(), next.PEM())
	return []func(){
		func() { r.server.Certify(t, old, old, next) }, // the server trusts both
		func() { r.write(t, "ca.pem", both[:len(both)-20]) },
		func() { r.write(t, "ca.pem", both) },
		func() { r.server.Certify(t, next, old, next) }, // the server's own certificate is of the new one
		func() { r.rename(t, "client.pem", cert) },      // does not match the key
		func() { r.rename(t, "client.key", key) },
		func() { r.server.Certify(t, next, next) }, // the server trusts the new one alone, and so do clients
		func() { r.rename(t, "ca.pem", next.PEM()) },
		func() { require.NoError(t, os.Remove(r.ca)) },
		func() { r.write(t, "ca.pem", next.PEM()) },
		func() { r.server.Cmd(t, "ACL", "SETUSER", "locker", ">"+password) },
		func() { r.write(t, "password", nil) },
		func() { r.write(t, "password", []byte(password)) },
		func() { r.server.Cmd(t, "ACL", "SETUSER", "locker", "resetpass", ">"+password) },
	}
}

func (r *rotation) url(driver string) string {
	return "rediss+" + driver + "://locker@" + r.server.Addr() + "?password_file=" + r.secret + "&tls_ca_file=" + r.ca +
		"&tls_cert_file=" + r.cert + "&tls_key_file=" + r.key
}

// lockAgainAndAgain takes and releases a lock until ctx ends. A release whose connection was closed before the answer
// cannot say that it was the one that released.
func lockAgainAndAgain(ctx context.Context, t *testing.T, l locker.Locker, key string, locks *atomic.Int64) {
	for ctx.Err() == nil {
		lease, err := l.Lock(ctx, key)
		if err == nil {
			if err = lease.Unlock(ctx); errors.Is(err, locker.ErrUnavailable) {
				err = nil
			}
		}
		if err != nil && ctx.Err() == nil {
			t.Errorf("a lock failed: %v", err)
			return
		}
		locks.Add(1)
	}
}
