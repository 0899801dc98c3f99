package node

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/pipeline"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/virtual"
)

// apart answers as a server of a Redis Cluster does: it refuses a script with keys of several slots. It confirms each
// WAIT.
func apart(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
	replies, err := ok(ctx, cmds)
	for i, cmd := range cmds {
		if cmd[0] != "EVALSHA" {
			continue
		}
		n, _ := strconv.Atoi(cmd[2])
		for _, key := range cmd[3 : 3+n] {
			if script.Slot(key) != script.Slot(cmd[3]) {
				replies[i] = drivers.ServerError("CROSSSLOT Keys in request don't hash to the same slot")
			}
		}
	}
	return replies, err
}

// A driver may reach a server of a cluster without knowing. Each slot then has a marker of its own, whichever pipeline
// was refused.
func TestGuardOnAServerOfACluster(t *testing.T) {
	for _, replicas := range []int{0, 1} {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				d := &fake{answer: apart}
				n := New(d, Options{
					Name: "n1", Prefix: "p:", Timeout: timeout, Guard: time.Minute,
					Replicas: pipeline.Replicas{Want: replicas, Timeout: time.Second},
				})
				for _, key := range []string{"a", "b"} {
					if _, err := n.Acquire(t.Context(), backend.Request{Key: key, Token: "o", TTL: time.Second}); err != nil {
						t.Errorf("%s: %v", key, err)
					}
				}
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
