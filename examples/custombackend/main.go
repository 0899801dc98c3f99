// Custombackend counts to a number under a lock, in a file that several processes share. The locks are in a bbolt
// file, too, by package boltlock beside this program and not by a backend of this repository. The program is a module
// of its own, as it would be outside of the repository.
//
//	cd examples/custombackend
//	go run . /tmp/locks & go run . /tmp/locks & go run . /tmp/locks
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	_ "example.com/custombackend/boltlock" // the backend that LOCKER_URL may name
	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: custombackend directory")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "custombackend:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	l, err := config.Open(ctx, cmp.Or(os.Getenv("LOCKER_URL"), "bolt://"+filepath.Join(dir, "locks.db")))
	if err != nil {
		return err
	}
	defer l.Close()
	var n int
	for range 20 {
		err := locker.Do(ctx, l, "counter", func(context.Context) (err error) {
			n, err = count(filepath.Join(dir, "counter"))
			return err
		})
		if err != nil {
			return err
		}
	}
	fmt.Printf("ok: the counter is %d\n", n)
	return nil
}

// count reads, waits and writes. Without the lock, updates of other processes would be lost.
func count(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	n, err := strconv.Atoi("0" + strings.TrimSpace(string(text)))
	if err != nil {
		return 0, err
	}
	time.Sleep(time.Millisecond)
	return n + 1, os.WriteFile(path, []byte(strconv.Itoa(n+1)), 0o600)
}
