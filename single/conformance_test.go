package single_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/single"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) { conform(t, build) })
}

// TestConformanceOf runs the suite with other settings: with -short, with one of them.
func TestConformanceOf(t *testing.T) {
	t.Parallel()
	settings := map[string]func(t *testing.T){
		"a backend": conformBackend, "mixed drivers": conformMixedDrivers,
		"a cluster": conformCluster, "replicas": conformWithReplicas,
	}
	names := slices.Sorted(maps.Keys(settings))
	if testing.Short() { // each property starts a cluster, or a server with a replica
		names = short.Part(t, 1, []string{"a backend", "mixed drivers"})
	}
	for _, name := range names {
		t.Run(name, settings[name])
	}
}

func conform(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
	conformance.RunLocker(t, conformance.Harness{
		Store: func(t testing.TB) conformance.Store {
			s := redistest.Start(t)
			return conformance.Store{
				Client:  func() locker.Locker { return single.New(build(t, s.Addr()), single.Name(s.Addr())) },
				Delete:  func(key string) { s.Cmd(t, "DEL", single.DefaultPrefix+key) },
				Foreign: foreign(t, s),
				Hang: func() func() {
					s.Pause()
					return s.Resume
				},
				Restart: s.Restart, // without its data: the clock makes tokens grow
				Left:    left(t, s),
			}
		},
	})
}

// Semaphores, readers and writers, with and without a restart guard.
func TestSemaphoresReadersAndWriters(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]single.Option{"plain": nil, "guard": {single.Guard(time.Hour)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, build func(t testing.TB, addr string) drivers.Driver) {
				h := conformance.Harness{Store: func(t testing.TB) conformance.Store {
					s := redistest.Start(t)
					if len(opts) > 0 {
						d := build(t, s.Addr())
						if err := single.Bootstrap(t.Context(), d, opts...); err != nil {
							t.Fatal(err)
						}
						_ = d.Close()
					}
					return conformance.Store{
						Client: func() locker.Locker { return single.New(build(t, s.Addr()), opts...) },
						Delete: func(key string) { s.Cmd(t, "DEL", single.DefaultPrefix+key) },
						Left:   left(t, s),
					}
				}}
				conformance.RunSemaphore(t, h)
				conformance.RunRWLock(t, h)
			})
		})
	}
}

// Clients with different drivers on one server exclude each other.
func conformMixedDrivers(t *testing.T) {
	t.Parallel()
	names := drivers.Names()
	conformance.RunLocker(t, conformance.Harness{
		Store: func(t testing.TB) conformance.Store {
			s := redistest.Start(t)
			n := 0
			return conformance.Store{
				Client: func() locker.Locker {
					n++
					return single.New(opened(names[n%len(names)])(t, s.Addr()))
				},
				Delete: func(key string) { s.Cmd(t, "DEL", single.DefaultPrefix+key) },
				Left:   left(t, s),
			}
		},
	})
}

// foreign makes something of another type that has no expiry.
func foreign(t testing.TB, s *redistest.Server) func(key string) (intact func() bool) {
	return func(key string) func() bool {
		key = single.DefaultPrefix + key
		s.Cmd(t, "RPUSH", key, "somebody's")
		return func() bool { return s.Cmd(t, "LLEN", key) == int64(1) && s.Cmd(t, "TTL", key) == int64(-1) }
	}
}

// left lists what should not be there when nobody holds a lock or waits for one.
func left(t testing.TB, s *redistest.Server) func() []string {
	return func() []string { return s.Left(t) }
}
