package recovery

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
)

// failoversEnv is the number of failovers of TestFailovers, with each of the settings.
const failoversEnv = "LOCKER_FAILOVERS"

// failOver kills the master after prepare, has its replica take its place, and gives the new master a replica.
func failOver(prepare func(b *testbed)) func(b *testbed, nodes []int) {
	return func(b *testbed, nodes []int) {
		prepare(b)
		b.promoted(nodes, b.replicas)
		redistest.StartReplica(b.T, b.replicas[0])
	}
}

// failovers are ways in which the replica of one master takes over.
func failovers() []kind {
	all := []kind{
		{name: "has all", inject: failOver(func(*testbed) {})},
		{
			name: "has not heard of the master for up to 0.2 s",
			inject: failOver(func(b *testbed) {
				b.cmd(b.replicas[0], "REPLICAOF", "127.0.0.1", 1)
				time.Sleep(rand.N(200 * time.Millisecond))
			}),
		},
		{name: "has not heard of it for 3 s", inject: failOver(func(b *testbed) { b.isolate([]int{0}) })},
		{
			name: "was frozen for 3 s, until the master was killed",
			inject: failOver(func(b *testbed) {
				b.replicas[0].Pause()
				time.Sleep(lag)
				b.servers[0].Kill()
				b.replicas[0].Resume()
			}),
		},
	}
	for i := range all {
		all[i].moves, all[i].replicated, all[i].blocked = true, true, true
	}
	return all
}

// settings are what stands against second holders, by column.
var settings = []string{"nothing", "WaitReplicas", "guard", "both"}

// Failovers of one master with each of the settings. With the guard, no lock has two holders.
func TestFailovers(t *testing.T) {
	n, locks := 1, 40
	if text := os.Getenv(failoversEnv); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		locks = 100
	}
	var mu sync.Mutex
	counts := map[string]*[4]cell{}
	todo := make(chan trial)
	var players sync.WaitGroup
	for range 2 * beside {
		players.Go(func() {
			for tr := range todo {
				setting := btoi(tr.waits) + 2*btoi(tr.guarded)
				t.Run(strings.ReplaceAll(tr.kind.name+"/"+settings[setting], " ", "_"), func(t *testing.T) {
					r := tr.run(t)
					if tr.guarded && len(r.doubles) > 0 {
						t.Errorf("%d of %d locks had two holders: %v", len(r.doubles), r.episodes, r.doubles[0])
					}
					mu.Lock()
					defer mu.Unlock()
					if counts[tr.kind.name] == nil {
						counts[tr.kind.name] = &[4]cell{}
					}
					c := &counts[tr.kind.name][setting]
					c.doubles, c.episodes = c.doubles+len(r.doubles), c.episodes+r.episodes
				})
			}
		})
	}
	for i := range n {
		k := failovers()[i%len(failovers())]
		driver := drivers.Names()[i/len(failovers())%len(drivers.Names())]
		for j := range settings {
			if n > 1 || j == len(settings)-1 {
				todo <- trial{kind: k, driver: driver, nodes: 1, waits: j%2 == 1, guarded: j >= 2, locks: locks}
			}
		}
	}
	close(todo)
	players.Wait()
	t.Logf("%d failovers with each setting, %s\n%s", n, redistest.Version(redistest.Binary(t)), failoverTable(counts))
}

func failoverTable(counts map[string]*[4]cell) string {
	var text strings.Builder
	fmt.Fprintf(&text, "| the replica that takes over | %s |\n| --- |%s\n", strings.Join(settings, " | "),
		strings.Repeat(" --: |", len(settings)))
	for _, k := range failovers() {
		if counts[k.name] == nil {
			continue
		}
		fmt.Fprintf(&text, "| %s |", k.name)
		for _, c := range counts[k.name] {
			fmt.Fprintf(&text, " %v |", c)
		}
		text.WriteString("\n")
	}
	return text.String()
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
