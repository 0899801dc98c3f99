package nats_test

import (
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/nats"
	"github.com/golocker/locker/config"
)

// A program with a connection of its own and a program with a URL exclude each other, if neither chooses a prefix.
func TestNewAndURLHaveOnePrefix(t *testing.T) {
	t.Parallel()
	s := start(t)
	byURL, err := config.Open(t.Context(), "nats://"+s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer byURL.Close()
	byNew := nats.New(s.js)
	defer byNew.Close()
	if _, err := byURL.TryLock(t.Context(), "k", locker.TTL(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := byNew.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("%v, expected to find the lock held", err)
	}
}
