package memory

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
)

// ownerPrefixLen is how many bytes of an owner's token are shown.
const ownerPrefixLen = 8

// Inspect implements [inspect.Inspector].
func (b *Backend) Inspect(_ context.Context, key string) (inspect.Inspection, error) {
	b.mu.Lock()
	defer b.unlock()
	return b.inspect(key), nil
}

// inspect returns what is known about key. Call with mu held.
func (b *Backend) inspect(key string) inspect.Inspection {
	if b.groups[key] != nil {
		return b.inspectGroup(key)
	}
	l, ok := b.locks[key]
	if !ok || !l.taken() && len(l.waiting) == 0 {
		return inspect.Inspection{State: inspect.Free}
	}
	l = b.lock(key) // hands the lock to the next waiter if it has expired
	i := inspect.Inspection{
		State: inspect.Held, Owner: l.token[:min(ownerPrefixLen, len(l.token))], Label: l.label,
		Remaining: time.Until(l.expires), Held: time.Since(l.since), Fence: l.fence, Waiting: len(l.waiting),
	}
	if l.token == "" {
		i.State = inspect.Kept
	}
	return i
}

// ForceRelease implements [inspect.Inspector].
func (b *Backend) ForceRelease(_ context.Context, key, owner string) (inspect.Inspection, error) {
	b.mu.Lock()
	defer b.unlock()
	if b.groups[key] != nil {
		return b.forceEntry(key, owner)
	}
	i := b.inspect(key)
	l := b.locks[key]
	if i.State == inspect.Free || !strings.HasPrefix(l.token, owner) {
		return i, locker.ErrNotHeld
	}
	l.token, l.label, l.expires = "", "", time.Time{}
	b.next(key, l)
	b.tell(key)
	return i, nil
}

// page is how many locks a step of List is about.
const page = 100

// List implements [inspect.Lister].
func (b *Backend) List(_ context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	return func(yield func(inspect.Listed, error) bool) {
		b.mu.Lock()
		defer b.unlock()
		if listed(b, b.locks, prefix, yield) {
			listed(b, b.groups, prefix, yield)
		}
	}
}

// listed yields the locks of a map, some at a time. Go allows others to change the map meanwhile, and what is in it for
// all of the loop comes once. It returns false if the caller wants no more. Call with mu held, which is not held while
// the caller has a lock.
func listed[L any](b *Backend, of map[string]L, prefix string, yield func(inspect.Listed, error) bool) bool {
	var found []inspect.Listed
	pass := func() bool {
		b.unlock()
		defer b.mu.Lock()
		for _, l := range found {
			if !yield(l, nil) {
				return false
			}
		}
		found = found[:0]
		return true
	}
	looked := 0
	for key := range of {
		if strings.HasPrefix(key, prefix) {
			if i := b.inspect(key); i.State != inspect.Free {
				found = append(found, inspect.Listed{Key: key, At: time.Now(), Inspection: i})
			}
		}
		if looked++; looked%page == 0 && !pass() {
			return false
		}
	}
	return pass()
}

// RaiseFences implements [inspect.FenceRaiser].
func (b *Backend) RaiseFences(_ context.Context, past uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fence = max(b.fence, past)
	return nil
}

// Watch implements [inspect.Watcher].
func (b *Backend) Watch(key string, changed func()) (stop func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.listen(b.watchers, key, &changed), nil
}

// NotifyWanted implements [backend.WantedNotifier].
func (b *Backend) NotifyWanted(req backend.Request, wanted func()) (stop func()) {
	b.mu.Lock()
	defer b.unlock()
	if b.isWanted(req) {
		b.told = append(b.told, &wanted)
	}
	return b.listen(b.holders, req.Token, &wanted)
}

// isWanted reports whether others wait for what req has. Call with mu held.
func (b *Backend) isWanted(req backend.Request) bool {
	if req.Group != nil {
		g, e, err := b.ownedEntry(req)
		return err == nil && g.isWanted(e)
	}
	l, err := b.owned(req)
	return err == nil && len(l.waiting) > 0
}

// listen adds f to the functions that to has for a name, until stop is called. Call with mu held.
func (b *Backend) listen(to map[string][]*func(), name string, f *func()) (stop func()) {
	to[name] = append(to[name], f)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		rest := slices.DeleteFunc(to[name], func(other *func()) bool { return other == f })
		if to[name] = rest; len(rest) == 0 {
			delete(to, name)
		}
	}
}

// tell has unlock call the functions that watch key. Call with mu held.
func (b *Backend) tell(key string) { b.told = append(b.told, b.watchers[key]...) }

// unlock unlocks mu, and then calls the functions that are told of what has changed. They may call the Backend.
func (b *Backend) unlock() {
	told := b.told
	b.told = nil
	b.mu.Unlock()
	for _, changed := range told {
		(*changed)()
	}
}
