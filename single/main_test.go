package single_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	goredisclient "github.com/redis/go-redis/v9"
	rueidisclient "github.com/redis/rueidis"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/drivers/goredisdriver"
	"github.com/golocker/locker/drivers/redigodriver"
	"github.com/golocker/locker/drivers/rueidisdriver"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/single"
)

// The test binary is also the program that some tests stop and kill.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(waiterEnv) != "":
		playWaiter()
	case os.Getenv(holderEnv) != "":
		playHolder()
	default:
		redistest.Main(m)
	}
}

// player is the client of a process that a test has started, for a driver and an address. It is never closed.
func player(driver, addr string) *locker.Client {
	d, err := drivers.Open(context.Background(), driver, drivers.Config{Network: "tcp", Addr: addr})
	if err != nil {
		panic(err)
	}
	return single.New(d)
}

// builders are the ways to reach a server: each driver with a client of its own making, and each with one that a user
// made with nothing but the library's defaults.
var builders = map[string]func(t testing.TB, addr string) drivers.Driver{
	"goredis": opened("goredis"),
	"redigo":  opened("redigo"),
	"rueidis": opened("rueidis"),
	"goredis, user's client": func(t testing.TB, addr string) drivers.Driver {
		c := goredisclient.NewClient(&goredisclient.Options{Addr: addr})
		t.Cleanup(func() { _ = c.Close() })
		return goredisdriver.New(c)
	},
	"redigo, user's client": func(t testing.TB, addr string) drivers.Driver {
		p := &redis.Pool{MaxIdle: 8, Dial: func() (redis.Conn, error) { return redis.Dial("tcp", addr) }}
		t.Cleanup(func() { _ = p.Close() })
		return redigodriver.New(p)
	},
	"rueidis, user's client": func(t testing.TB, addr string) drivers.Driver {
		c, err := rueidisclient.NewClient(rueidisclient.ClientOption{InitAddress: []string{addr}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return rueidisdriver.New(c)
	},
}

// knowsClusters matches the names of builders whose client asks the server whether it is one of a cluster.
var knowsClusters = regexp.MustCompile(`(rueidis|valkey),[ _]user`)

func opened(name string) func(t testing.TB, addr string) drivers.Driver {
	return func(t testing.TB, addr string) drivers.Driver {
		d, err := drivers.Open(t.Context(), name, drivers.Config{Network: "tcp", Addr: addr})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// each runs f once per builder; with -short, with one of them.
func each(t *testing.T, f func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver)) {
	for _, name := range short.Part(t, 1, slices.Sorted(maps.Keys(builders))) {
		build := builders[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, build)
		})
	}
}

// closing closes the client in the end.
func closing(t testing.TB, c *locker.Client) *locker.Client {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

// eventually waits until cond holds.
func eventually(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		over := time.Now().After(end) // asked before the last look, which a stall may have made late
		if cond() {
			return
		}
		if over {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// promptly lets a situation happen, which returns how long it took, and checks that this is within bound. On a machine
// that stalls a situation may be late now and then; what is wrong is late each time.
func promptly(t testing.TB, bound time.Duration, situation func() time.Duration) {
	t.Helper()
	const slack, tries, stall = time.Second, 4, 30 * time.Second
	for try := 1; ; try++ {
		switch late := situation(); {
		case late <= bound+slack:
			return
		case try == tries, late > bound+stall: // no machine stalls for that long
			t.Errorf("it took %v, more than %v; try %d", late, bound, try)
			return
		default:
			t.Logf("it took %v, more than %v: once more", late, bound)
		}
	}
}

// wantErr checks that err matches all of want and none of the other sentinels.
func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	all := []error{
		locker.ErrHeld, locker.ErrNotHeld, locker.ErrLost, locker.ErrUnlocked, locker.ErrNoQuorum, locker.ErrUnavailable,
		locker.ErrForeignKey, locker.ErrClosed, context.Canceled, context.DeadlineExceeded,
	}
	for _, e := range all {
		wanted := false
		for _, w := range want {
			wanted = wanted || w == e
		}
		if errors.Is(err, e) != wanted {
			t.Errorf("error %q matches %q: %v, want %v", err, e, !wanted, wanted)
		}
	}
}
