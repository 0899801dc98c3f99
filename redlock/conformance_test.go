package redlock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/redlock"
)

func TestConformance(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		for _, driver := range append(drivers.Names(), "mixed") {
			if driver == "mixed" && n != 3 || testing.Short() && driver != "mixed" {
				continue
			}
			t.Run(fmt.Sprintf("%d nodes, %s", n, driver), func(t *testing.T) {
				servers := redistest.NewPool(t)
				conformance.RunLocker(t, conformance.Harness{
					Labels: true, Verifies: true,
					Store: func(t testing.TB) conformance.Store {
						c := borrowCluster(t, servers, n)
						return conformance.Store{
							Client: func() locker.Locker { return c.client(t, driver) },
							Delete: func(key string) {
								for _, s := range c {
									s.Cmd(t, "DEL", redlock.DefaultPrefix+key)
								}
							},
							Foreign: func(key string) func() bool {
								for _, s := range c {
									s.Cmd(t, "SET", redlock.DefaultPrefix+key, "for ever")
								}
								return nil
							},
							Hang: func() func() {
								for _, s := range c {
									s.Pause()
								}
								return func() {
									for _, s := range c {
										s.Resume()
									}
								}
							},
							Restart: func() {
								for _, s := range c {
									s.Restart()
								}
								time.Sleep(pastTheQuantum)
							},
							Left: func() (left []string) {
								for _, s := range c {
									left = append(left, s.Left(t)...)
								}
								return left
							},
						}
					},
				})
			})
		}
	}
}
