package redlock_test

import (
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/redlock"
)

func TestNewWithNodesDownOrHung(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fail, restore func(*redistest.Server)
	}{
		"down": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"hung": {(*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, driver string) {
				c := startCluster(t, 3)
				for _, s := range c {
					tt.fail(s)
				}
				defer func() {
					for _, s := range c {
						s.Resume()
					}
				}()
				var ds []drivers.Driver
				for _, s := range c {
					d, err := drivers.Open(t.Context(), driver, drivers.Config{Network: "tcp", Addr: s.Addr(), Timeout: patient})
					if err != nil {
						t.Fatal(err)
					}
					ds = append(ds, d)
				}
				start := time.Now()
				l, err := redlock.New(ds, redlock.Budget(200*time.Millisecond), redlock.Timeout(time.Second),
					redlock.Logger(newLog().Logger))
				if took := time.Since(start); err != nil || took > patient/2 {
					t.Fatalf("New takes %v: %v", took, err)
				}
				defer l.Close()
				_, err = l.Lock(t.Context(), "k", locker.TTL(longTTL))
				wantErr(t, err, locker.ErrNoQuorum, locker.ErrUnavailable)
				tt.restore(c[0])
				_, err = l.Lock(t.Context(), "k", locker.TTL(longTTL))
				if err == nil {
					t.Fatal("one of three is no majority")
				}
				tt.restore(c[1])
				eventually(t, 30*time.Second, "two of three serve", func() bool { return tryCycle(t.Context(), l, "k") == nil })
				tt.restore(c[2])
				c.wantNoLocks(t)
			})
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	d := open(t, "redigo", redistest.Start(t).Addr())
	defer d.Close()
	many := make([]drivers.Driver, 33)
	for i := range many {
		many[i] = d
	}
	for text, f := range map[string]func() (*locker.Client, error){
		"no nodes":   func() (*locker.Client, error) { return redlock.New(nil) },
		"32 are":     func() (*locker.Client, error) { return redlock.New(many) },
		"1 names":    func() (*locker.Client, error) { return redlock.New(many[:2], redlock.Names("a")) },
		`called "a"`: func() (*locker.Client, error) { return redlock.New(many[:2], redlock.Names("a", "a")) },
	} {
		l, err := f()
		if err == nil {
			_ = l.Close()
		}
		wantText(t, err, "redlock: ", text)
	}
}
