package etcd

import "github.com/golocker/locker"

// Watch implements inspect.Watcher. changed is also called when the watch has begun, which happens again after each
// loss of the connection, and when a waiter comes or goes: only a look can tell whether its entry was the first one.
func (b *Backend) Watch(key string, changed func()) (stop func(), err error) {
	if b.unfit != nil {
		return nil, b.unfit
	}
	w := &b.changes
	e := &watched{name: b.dir(key), dir: true, told: changed}
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
