package goredisdriver

import (
	"context"
	"time"

	"github.com/golocker/locker/drivers"
)

// reloadPause is the shortest time between two lookups of the masters.
const reloadPause = time.Second

// note records whether an exchange succeeded. If it failed on a cluster, note makes the client look up the masters
// again.
//
// The client itself does that when a server redirects it, and otherwise after its ClusterStateReloadInterval, which is
// a minute by default. A dead server does not redirect, nor does one that is cut off from the others and answers
// CLUSTERDOWN. Every failure counts, because a server that hangs or whose host is gone only causes time-outs. Because
// of reloadPause, not every failed call sends another request to a cluster in trouble.
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
