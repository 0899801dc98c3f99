package etcdlock

import (
	"context"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// watchAfter is how long a lock is held before its entry is watched. So a short critical section costs etcd no watch. A
// deletion before that is reported then, because a watch begins with the past.
const watchAfter = 250 * time.Millisecond

// NotifyLoss implements [backend.LossNotifier].
func (b *store) NotifyLoss(req backend.Request, lost func(err error)) (stop func()) {
	w := &b.losses
	e := &watched{
		name: b.entry(req.Key, req.Token), from: holdingOf(req).revision + 1,
		told: func() { lost(locker.ErrNotHeld) },
	}
	stopped := false // guarded by the mu of w
	timer := time.AfterFunc(watchAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !stopped {
			w.add(e)
		}
	})
	return func() {
		timer.Stop()
		w.mu.Lock()
		defer w.mu.Unlock()
		stopped = true
		w.remove(e)
	}
}

// NotifyWanted implements [backend.WantedNotifier]. It watches the directory of the lock, and counts its entries when
// the watch has begun and after each change, until there is one beside that of the holder. Of a group, it watches only
// those who wait, and reads what they want.
func (b *store) NotifyWanted(req backend.Request, wanted func()) (stop func()) {
	var over atomic.Bool
	others, name := b.hasWaiters, b.dir(req.Key)
	if req.Group != nil {
		others, name = b.isWanted, name+waits
	}
	end, err := b.watch(name, func() {
		if over.Load() {
			return
		}
		b.chores.Repeat(time.Now().Add(b.timeout), func(ctx context.Context) error {
			if over.Load() {
				return nil
			}
			is, err := others(undated{ctx}, req)
			if is && !over.Swap(true) {
				wanted()
			}
			return err
		})
	})
	if err != nil {
		return func() {}
	}
	return func() {
		over.Store(true)
		end()
	}
}

// hasWaiters reports whether somebody waits for a lock that is held.
func (b *store) hasWaiters(ctx context.Context, req backend.Request) (bool, error) {
	resp, err := b.kv.Get(ctx, b.dir(req.Key), clientv3.WithPrefix(), clientv3.WithCountOnly())
	return err == nil && resp.Count > 1, err
}

// Watch implements inspect.Watcher. changed is also called when the watch has begun, which happens again after each
// loss of the connection, and when a waiter comes or goes: only a look can tell whether its entry was the first one.
func (b *store) Watch(key string, changed func()) (stop func(), err error) {
	return b.watch(b.dir(key), changed)
}

// watch calls changed for what has a name that begins with prefix; see Watch.
func (b *store) watch(prefix string, changed func()) (stop func(), err error) {
	if b.unfit != nil {
		return nil, b.unfit
	}
	w := &b.changes
	e := &watched{name: prefix, dir: true, told: changed}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open.Err() != nil {
		return nil, locker.ErrClosed
	}
	w.add(e)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.remove(e)
	}, nil
}
