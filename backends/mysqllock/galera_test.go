package mysqllock_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/golocker/locker/backends/mysqllock"
	"github.com/golocker/locker/internal/testing/mariadbtest"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/record/recordtest"
)

// The rules of a Store, whose clients use different nodes of a cluster.
func TestGalera(t *testing.T) {
	t.Parallel()
	cluster := sync.OnceValue(func() []*mariadbtest.Server { // not in the processes of the suite
		nodes := mariadbtest.Cluster(t, 2)
		for _, s := range nodes {
			db := pool(t, s.URL(mariadbtest.Database))
			eventually(t, "a node has joined the others", func() error {
				_, err := db.ExecContext(t.Context(), "DO 1")
				return err
			})
		}
		migrate(t, nodes[0])
		return nodes
	})
	opened := os.Getpid() // another one in each process
	recordtest.Run(t, func(t testing.TB, place string) (record.Store, string) {
		if place == "" {
			nodes := cluster()
			table := newTable(t, pool(t, nodes[0].URL(mariadbtest.Database)))
			place = strings.Join([]string{table, nodes[0].Addr(), nodes[1].Addr()}, " ")
		}
		opened++
		parts := strings.Fields(place)
		return mysqllock.NewStore(pool(t, urlOf(parts[1+opened%2])), mysqllock.Table(parts[0])), place
	})

	nodes := cluster()
	contend(t, nodes)

	// A program has to set it for its own connections.
	for params, want := range map[string]string{"": "set wsrep_sync_wait=7", "?wsrep_sync_wait=15": ""} {
		_, _, err := mysqllock.NewStore(raw(t, nodes[0].Addr(), params)).Get(t.Context(), "k")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Get with %q: %v, expected %q", params, err, want)
		}
	}
}

// contend makes clients of all nodes write the same few records. They see conflicts, and no deadlocks of the nodes.
func contend(t *testing.T, nodes []*mariadbtest.Server) {
	var clients sync.WaitGroup
	for i := range 8 {
		store := mysqllock.NewStore(pool(t, nodes[i%len(nodes)].URL(mariadbtest.Database)))
		clients.Go(func() {
			for n := range 400 {
				name := fmt.Sprint("k", n/40)
				_, version, err := store.Get(t.Context(), name)
				switch {
				case err != nil:
				case version == "":
					_, err = store.Create(t.Context(), name, []byte("{}"))
				default:
					_, err = store.Replace(t.Context(), name, version, []byte("{}"))
				}
				if err != nil && !errors.Is(err, record.ErrConflict) {
					t.Errorf("client %d, request %d: %v", i, n, err)
					return
				}
			}
		})
	}
	clients.Wait()
}
