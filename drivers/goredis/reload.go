package goredis

import (
	"context"
	"time"

	"github.com/golocker/locker/drivers"
)

// reloadPause is how long the driver waits at least before it has the client look for the masters again.
const reloadPause = time.Second

// note takes notice of how an exchange went. When it failed, and the client is one of a cluster, that is told to look for the
// masters again. By itself it does so when a server redirects it, which a dead one does not, nor one that is cut off from the
// others and says CLUSTERDOWN; else only after its ClusterStateReloadInterval, a minute by default. Every failure counts, because a
// server that hangs or whose host is gone shows in time-outs alone. The pause keeps a cluster in trouble from being asked by each
// failed call.
func (d *driver) note(failed bool, replies ...drivers.Reply) {
	d.live.Store(!failed)
	if d.cluster == nil {
		return
	}
	for _, reply := range replies {
		if refusal, ok := reply.(drivers.ServerError); ok && refusal.Code() == "CLUSTERDOWN" {
			failed = true
		}
	}
	if !failed {
		return
	}
	d.reloading.Lock()
	defer d.reloading.Unlock()
	if d.reloaded.IsZero() || time.Since(d.reloaded) >= reloadPause {
		d.reloaded = time.Now()
		d.cluster.ReloadState(context.Background()) // does not wait
	}
}
