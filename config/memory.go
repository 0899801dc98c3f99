package config

import (
	"context"
	"sync"

	"github.com/golocker/locker"
	"github.com/golocker/locker/memory"
)

func init() {
	Register("memory", Backend[struct{}]{
		InProcess: true,
		Open: func(_ context.Context, _ *struct{}, prefix string) (*locker.Client, error) {
			return locker.NewClient(memoryStore(prefix)), nil
		},
	})
}

var stores struct {
	sync.Mutex
	byPrefix map[string]*memory.Backend
}

// memoryStore returns the process's store for prefix. Two parts of a program that both ask for "memory:" exclude each
// other, as they would on Redis.
func memoryStore(prefix string) *memory.Backend {
	stores.Lock()
	defer stores.Unlock()
	if stores.byPrefix == nil {
		stores.byPrefix = make(map[string]*memory.Backend)
	}
	s, ok := stores.byPrefix[prefix]
	if !ok {
		s = memory.NewBackend()
		stores.byPrefix[prefix] = s
	}
	return s
}
