package single_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/single"
)

// Values of other types under the keys of a lock are not this library's. They stay as they are, whatever is done with
// the lock, and the error says which keys to look at.
func TestValuesOfOtherTypesStayAsTheyAre(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	values := map[string][]any{
		"list": {"RPUSH", "x"}, "set": {"SADD", "x"}, "hash": {"HSET", "x", "y"}, "zset": {"ZADD", 1, "x"},
		"string": {"SET", "x"},
	}
	helpers := map[string]struct {
		typ  string // of this library's value
		name func(script.Keys) string
	}{
		"waiters": {"hash", script.Keys.Wait}, "queue": {"zset", script.Keys.Queue},
		"counter": {"string", script.Keys.Fence},
	}
	calls := map[string]func(c *locker.Client, key string) error{
		"TryLock": func(c *locker.Client, key string) error { return unlocked(c.TryLock(t.Context(), key)) },
		"Lock": func(c *locker.Client, key string) error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			return unlocked(c.Lock(ctx, key))
		},
		"TryLockAll": func(c *locker.Client, key string) error {
			a, err := locker.TryLockAll(t.Context(), c, []string{key, key + "2"})
			if err == nil {
				err = a.Unlock(t.Context())
			}
			return err
		},
		"many at once": func(c *locker.Client, key string) error {
			var all sync.WaitGroup
			errs := make([]error, 30)
			for i := range errs {
				all.Go(func() { errs[i] = unlocked(c.TryLock(t.Context(), fmt.Sprint(key, i))) })
			}
			all.Wait()
			return errors.Join(errs...)
		},
	}
	open := func() drivers.Driver {
		d, err := drivers.Open(t.Context(), "goredis", drivers.Config{Network: "tcp", Addr: s.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	dump := func(key string) any { return []any{s.Cmd(t, "TYPE", key), s.Cmd(t, "DUMP", key)} }
	c := single.New(open())
	for what, helper := range helpers {
		for typ, value := range values {
			for name, call := range calls {
				if typ == helper.typ {
					continue
				}
				// A key of its own each time, because the first calls on a key take another way than the next.
				key := fmt.Sprintf("{%s-%s-%s}", what, typ, name)
				foreign := helper.name(script.KeysOf("lock:", key))
				s.Cmd(t, "DEL", foreign) // the counter may be that of another key in the same slot
				s.Cmd(t, append([]any{value[0], foreign}, value[1:]...)...)
				before := dump(foreign)
				err := call(c, key)
				if after := dump(foreign); !reflect.DeepEqual(before, after) {
					t.Errorf("%s with a %s under %s: it was %q and is %q", name, typ, foreign, before, after)
				}
				told := strings.ReplaceAll(foreign, "lock:"+key, "…")
				if err == nil && what == "counter" || err != nil && !strings.Contains(err.Error(), told) {
					t.Errorf("%s with a %s under %s: %v", name, typ, foreign, err)
				}
				s.Cmd(t, "DEL", foreign)
			}
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	// The marker of a restart guard, which Bootstrap writes.
	d := open()
	bootstrap(t, d, single.Guard(time.Second))
	marker := s.Keys(t, "*lock:guard")[0]
	s.Cmd(t, "DEL", marker)
	s.Cmd(t, "RPUSH", marker, "x")
	before := dump(marker)
	d = open()
	err := errors.Join(single.Bootstrap(t.Context(), d, single.Guard(time.Second)), d.Close())
	if after := dump(marker); err == nil || !reflect.DeepEqual(before, after) {
		t.Errorf("Bootstrap with a list under %s: %v, and it is %q", marker, err, after)
	}
}

// unlocked unlocks what was acquired.
func unlocked(lease locker.Lease, err error) error {
	if err != nil {
		return err
	}
	return lease.Unlock(context.Background())
}
