package plain_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"example.com/customdriver/plain"
	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/single"
)

// server returns the address of a Redis: REDIS_ADDR, or that of a redis-server of this test's own.
func server(t testing.TB) string {
	t.Helper()
	if addr := os.Getenv("REDIS_ADDR"); addr != "" {
		return addr
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal("give REDIS_ADDR, or install redis-server: ", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	d := plain.New(drivers.Config{Network: "tcp", Addr: addr})
	defer d.Close()
	ready(t, d)
	return addr
}

// ready waits until the server answers.
func ready(t testing.TB, d drivers.Driver) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := d.Do(t.Context(), drivers.Command{"PING"}); err == nil {
			return
		} else if time.Now().After(end) {
			t.Fatal("redis-server does not answer: ", err)
		}
	}
}

// The suite checks every rule of the contract.
func TestDriver(t *testing.T) {
	addr := server(t)
	conformance.RunDriver(t, conformance.DriverHarness{
		Addr: func(testing.TB) string { return addr },
		Open: func(_ testing.TB, addr string) drivers.Driver {
			return plain.New(drivers.Config{Network: "tcp", Addr: addr})
		},
		Refused: func(testing.TB) drivers.Driver {
			return plain.New(drivers.Config{Network: "tcp", Addr: addr, Username: "nobody", Password: "wrong"})
		},
	})
}

// This test takes one lock through the driver, by the name that a URL would use.
func TestLock(t *testing.T) {
	d, err := drivers.Open(t.Context(), "plain", drivers.Config{Network: "tcp", Addr: server(t), DB: 1})
	if err != nil {
		t.Fatal(err)
	}
	l := single.New(d)
	defer l.Close()
	err = locker.Do(t.Context(), l, "key", func(ctx context.Context) error {
		lease, _ := locker.LeaseFrom(ctx)
		t.Log("holding, with fencing token", lease.Fence())
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
