package everystore

import (
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/contention"
	"github.com/golocker/locker/internal/testing/storeurl"
)

// Clients of every store contend for permits, and for shared and exclusive locks.
func TestPermitsReadersAndWriters(t *testing.T) {
	for name, start := range storeurl.Start(migrate) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t)
			var clients []locker.Locker
			for range 3 {
				l, err := config.Open(t.Context(), url)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				clients = append(clients, l)
				if name == storeurl.Memory { // another one has other locks
					break
				}
			}
			contention.Permits(t, clients, 3)
			contention.ReadersAndWriters(t, clients)
		})
	}
}
