package oncetest_test

import (
	"testing"

	_ "github.com/golocker/locker/drivers/all"
	"github.com/golocker/locker/internal/testing/oncetest"
	"github.com/golocker/locker/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	oncetest.Main()
	redistest.Main(m)
}

func TestInstanceIsKilled(t *testing.T) {
	t.Parallel()
	oncetest.Killed(t, "redis+goredis://"+redistest.Start(t).Addr())
}

func TestInstanceIsStopped(t *testing.T) {
	t.Parallel()
	oncetest.Stopped(t, "redis+redigo://"+redistest.Start(t).Addr())
}

func TestServerIsDown(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	oncetest.Down(t, "redis+rueidis://"+s.Addr(), s)
}
