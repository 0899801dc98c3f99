package memory_test

import (
	"testing"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

func TestConformance(t *testing.T) {
	h := conformance.Harness{}
	h.Store = func(testing.TB) conformance.Store {
		b := memory.NewBackend()
		return conformance.Store{
			Open:   func() backend.Backend { return b },
			Delete: func(key string) { memory.Delete(b, key) },
			Left:   func() []string { return memory.Left(b) },
		}
	}
	t.Run("real time", func(t *testing.T) { conformance.RunLocker(t, h) })
	h.Bubble = virtual.Test
	t.Run("virtual time", func(t *testing.T) {
		conformance.RunBackend(t, h)
		conformance.RunSemaphore(t, h)
		conformance.RunRWLock(t, h)
	})
}
