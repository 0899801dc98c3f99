package everystore

import (
	"testing"

	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/internal/testing/natstest"
	"github.com/golocker/locker/internal/testing/oncetest"
	"github.com/golocker/locker/internal/testing/pgtest"
)

// Package once tests itself on Redis.
func TestTicks(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (url string, s oncetest.Server){
		"etcd": func(t *testing.T) (string, oncetest.Server) {
			s := etcdtest.Start(t)
			return "etcd://" + s.Addr(), s
		},
		"PostgreSQL": func(t *testing.T) (string, oncetest.Server) {
			s := pgtest.Start(t, "fsync=on")
			migrate(t, s.URL("postgres"))
			return s.URL("postgres"), s
		},
		"NATS": func(t *testing.T) (string, oncetest.Server) {
			s := natstest.Start(t)
			return s.URL(), s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, s := start(t)
			t.Run("an instance is killed", func(t *testing.T) { oncetest.Killed(t, url) })
			t.Run("an instance is stopped", func(t *testing.T) { oncetest.Stopped(t, url) })
			t.Run("the server is down", func(t *testing.T) { oncetest.Down(t, url, s) })
		})
	}
}
