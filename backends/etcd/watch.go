package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// watch is that of an entry.
type watch struct {
	entry string
	from  int64 // the revision from which on deletions count
	gone  clientv3.WatchChan
	end   func()
}

// begin returns a channel that has an event when entry is deleted, and is closed when ctx ends. It ends a watch of
// another entry. If etcd does not answer, the channel is closed after a while.
//
// The watch has none of the values of ctx: those that become metadata would make the client open a stream for each.
func (w *watch) begin(ctx context.Context, b *Backend, entry string) clientv3.WatchChan {
	if w.gone != nil && w.entry == entry {
		return w.gone
	}
	w.stop()
	inner, cancel := context.WithCancel(clientv3.WithRequireLeader(b.open))
	ended := context.AfterFunc(ctx, cancel)
	late := time.AfterFunc(silence, cancel)
	w.entry, w.end = entry, func() { ended(); cancel() }
	w.gone = b.client.Watch(inner, entry, clientv3.WithRev(w.from), clientv3.WithFilterPut())
	late.Stop()
	return w.gone
}

func (w *watch) stop() {
	if w.end != nil {
		w.end()
	}
	w.gone, w.end = nil, nil
}
