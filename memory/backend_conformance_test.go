package memory_test

import (
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
)

func TestBackendConformance(t *testing.T) {
	conformance.RunBackend(t, conformance.BackendHarness{
		Bubble: virtual.Test,
		FIFO:   true,
		Store: func(testing.TB) conformance.BackendStore {
			b := memory.NewBackend()
			return conformance.BackendStore{
				Open:   func() locker.Backend { return b },
				Delete: func(key string) { memory.Delete(b, key) },
				Left:   func() []string { return memory.Left(b) },
			}
		},
	})
}
