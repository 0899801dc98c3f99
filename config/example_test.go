package config_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

func ExampleOpen() {
	ctx := context.Background()
	l, err := config.Open(ctx, "memory:?ttl=30s") // or redis+rueidis://host:6379?ttl=30s
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()

	lease, err := l.Lock(ctx, "orders:42")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("holding", lease.Key())
	fmt.Println(lease.Unlock(ctx))
	// Output:
	// holding orders:42
	// <nil>
}

// Parse reports all mistakes in a URL at once. It does not repeat the password.
func ExampleParse_errors() {
	_, err := config.Parse("redis://locker:hunter2@localhost/first?ttl=10&log=inof")
	fmt.Println(err)
	// Output:
	// config: URL: db: not a whole number of 0 or more
	// config: URL: ttl: a number without a unit: write 10s or 500ms
	// config: URL: log: unknown level "inof": did you mean info? (known: debug, info, warn)
}

// A quorum of servers is a list of hosts. User and password are written once and are used for all hosts.
func ExampleParse_redlock() {
	c, err := config.Parse("redlock+rueidis://locker:hunter2@10.0.0.1,10.0.1.1,10.0.2.1?ttl=10s")
	fmt.Println(c, err)
	// Output:
	// redlock+rueidis://locker:[REDACTED]@10.0.0.1:6379,10.0.1.1:6379,10.0.2.1:6379?ttl=10s <nil>
}

// The environment overrides the file.
func ExampleLoad() {
	path := filepath.Join(os.TempDir(), "locker-example.yaml")
	defer os.Remove(path)
	_ = os.WriteFile(path, []byte("backend: redis\nttl: 30s\nredis:\n  addr: redis.internal\n  username: locker\n"),
		0o600)

	c, err := config.Load(path, "LOCKER_TTL=5s", "LOCKER_REDIS_PASSWORD=hunter2") // in a program: os.Environ()...
	fmt.Println(c, err)
	// Output:
	// redis://locker:[REDACTED]@redis.internal:6379?ttl=5s <nil>
}

func ExampleConfig_Open() {
	c := &config.Config{Backend: "memory", TTL: config.Duration(time.Minute)}
	l, err := c.Open(context.Background(), locker.NoRenewal())
	if err != nil {
		fmt.Println(err)
		return
	}
	lease, err := l.TryLock(context.Background(), "report")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Unlock(context.Background())
	fmt.Println(time.Until(lease.Until()).Round(time.Minute))
	// Output: 1m0s
}
