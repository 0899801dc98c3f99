//go:build unix

// Package storeurl starts the servers of every kind of store, for tests that do the same on all of them.
package storeurl

import (
	"strings"
	"testing"

	"github.com/golocker/locker/internal/testing/etcdtest"
	"github.com/golocker/locker/internal/testing/natstest"
	"github.com/golocker/locker/internal/testing/pgtest"
	"github.com/golocker/locker/internal/testing/redistest"
)

// Memory is the name of the only store that other processes do not see.
const Memory = "memory"

// Start has a function for each kind of store, by its name. It starts what the store needs until the test ends, and
// returns the URL for config.Open. The servers write to the disk as they do by default. migrate makes the tables in the
// PostgreSQL that has a URL: this package cannot, since the backend is a module of its own.
func Start(migrate func(tb testing.TB, url string)) map[string]func(tb testing.TB) (url string) {
	return map[string]func(tb testing.TB) string{
		Memory:  func(testing.TB) string { return "memory:" },
		"files": func(tb testing.TB) string { return "file:" + tb.TempDir() },
		"Redis": func(tb testing.TB) string { return "redis://" + redistest.Start(tb).Addr() },
		"Redlock": func(tb testing.TB) string {
			var addrs []string
			for range 3 {
				addrs = append(addrs, redistest.Start(tb).Addr())
			}
			return "redlock+rueidis://" + strings.Join(addrs, ",")
		},
		"etcd": func(tb testing.TB) string { return "etcd://" + etcdtest.Start(tb).Addr() },
		"PostgreSQL": func(tb testing.TB) string {
			url := pgtest.Start(tb, "fsync=on").URL("postgres")
			migrate(tb, url)
			return url
		},
		"NATS": func(tb testing.TB) string { return natstest.Start(tb).URL() },
	}
}
