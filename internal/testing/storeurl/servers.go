//go:build unix

package storeurl

import (
	"testing"

	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
)

// Server is the server of a store that tests kill and start again.
type Server interface {
	Kill()
	Restart()
}

// Servers has a function for each kind of store that adapters are tested on. It starts a server until the test ends,
// and returns the URL for config.Open, which needs the driver redigo. migrate is that of [Start].
func Servers(migrate func(tb testing.TB, url string)) map[string]func(tb testing.TB) (url string, s Server) {
	return map[string]func(tb testing.TB) (string, Server){
		"Redis": func(tb testing.TB) (string, Server) {
			s := redistest.Start(tb)
			return "redis+redigo://" + s.Addr(), s
		},
		"PostgreSQL": func(tb testing.TB) (string, Server) {
			s := pgtest.Start(tb)
			migrate(tb, s.URL("postgres"))
			return s.URL("postgres"), s
		},
	}
}
