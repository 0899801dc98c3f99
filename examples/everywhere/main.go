// Everywhere is one program for all stores. LOCKER_URL alone says where its locks are:
//
//	cd examples/everywhere
//	go run . /tmp/ledger                                                   # in this process
//	LOCKER_URL=file:/tmp/locks go run . /tmp/ledger                        # files, for the processes of one machine
//	LOCKER_URL=redis://localhost:6379 go run . /tmp/ledger                 # one Redis
//	LOCKER_URL=redlock://host1,host2,host3 go run . /tmp/ledger            # Redlock
//	LOCKER_URL=etcd://localhost:2379 go run . /tmp/ledger                  # etcd
//	LOCKER_URL=postgres://user@localhost/app go run . /tmp/ledger          # PostgreSQL, after: locker migrate
//	LOCKER_URL=nats://localhost:4222 go run . /tmp/ledger                  # NATS JetStream
//	LOCKER_URL=mysql://user@localhost/app go run . /tmp/ledger             # MySQL, after: locker migrate
//
// For S3, DynamoDB or Kubernetes, import one more package, as below: backends/s3lock, backends/dynamodblock or
// backends/kuberneteslock.
//
// It writes entries into a ledger, which is a file. Several of these programs can do so at once, on every store but the
// first. Each entry has the fencing token of its lock, and the program fails if the last entry has the same or a
// greater one.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker"
	_ "github.com/golocker/locker/backends/etcdlock"
	_ "github.com/golocker/locker/backends/filelock"
	_ "github.com/golocker/locker/backends/mysqllock"
	_ "github.com/golocker/locker/backends/natslock"
	_ "github.com/golocker/locker/backends/postgreslock"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all"
)

const (
	workers = 3
	entries = 5 // of each worker
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: everywhere ledger")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "everywhere:", err)
		os.Exit(1)
	}
	fmt.Printf("ok: %d entries, each with a greater token\n", workers*entries)
}

func run(ctx context.Context, ledger string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	l, err := config.Open(ctx, cmp.Or(os.Getenv("LOCKER_URL"), "memory:"))
	if err != nil {
		return err
	}
	defer l.Close()
	errs := make([]error, workers)
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for n := 0; n < entries && errs[i] == nil; n++ {
				errs[i] = enter(ctx, l, ledger)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// enter writes one entry under the lock.
func enter(ctx context.Context, l locker.Locker, ledger string) error {
	lease, err := l.Lock(ctx, "ledger", locker.TTL(10*time.Second))
	if err != nil {
		return err
	}
	return errors.Join(write(ledger, lease.Fence()), lease.Unlock(ctx))
}

// write reads the file, and writes it with one more line. Without the lock, entries of others would be lost.
func write(ledger string, token uint64) error {
	text, err := os.ReadFile(ledger)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lines := strings.Fields(string(text))
	var last uint64
	if n := len(lines); n > 0 {
		if _, err := fmt.Sscan(lines[n-1], &last); err != nil {
			return err
		}
	}
	if token <= last {
		return fmt.Errorf("token %d after %d: another holder has come in between", token, last)
	}
	return os.WriteFile(ledger, fmt.Appendf(text, "%d\n", token), 0o600)
}
