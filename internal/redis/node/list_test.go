package node

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/redis/script"
)

// scanned makes a driver of pages. page has the reply to a step of a listing, and all locks are held.
func scanned(page func(slot uint16, cursor string) []drivers.Reply) *fake {
	var mu sync.Mutex // the answers come one after the other
	f := &fake{}
	f.will(func(_ context.Context, cmds []drivers.Command) (replies []drivers.Reply, err error) {
		mu.Lock()
		defer mu.Unlock()
		for _, cmd := range cmds {
			if cmd[2] == "1" {
				replies = append(replies, page(script.Slot(cmd[3]), cmd[4]))
				continue
			}
			replies = append(replies, []drivers.Reply{int64(1), int64(1000), int64(1), int64(0), int64(1), "owner"})
		}
		return replies, nil
	})
	return f
}

// keysOf returns what is listed.
func keysOf(t *testing.T, l inspect.Lister) (keys []string, err error) {
	t.Helper()
	for found, err := range l.List(t.Context(), "") {
		if err != nil {
			return keys, err
		}
		keys = append(keys, found.Key)
	}
	return keys, nil
}

// A cursor of one server is worth nothing to another one, which has other places for the same keys.
func TestListingBeginsAnewOnAnotherServer(t *testing.T) {
	server := "one"
	n := New(scanned(func(_ uint16, cursor string) []drivers.Reply {
		switch {
		case server == "one" && cursor == "0":
			server = "two" // fails over
			return []drivers.Reply{"one", "", "5", "lock:a"}
		case cursor == "0":
			return []drivers.Reply{"two", "", "7", "lock:b"}
		case cursor == "7":
			return []drivers.Reply{"two", "", "0", "lock:a"}
		}
		return []drivers.Reply{"two", "", "0"}
	}), Options{Prefix: "lock:"})
	defer n.Close()
	keys, err := keysOf(t, n)
	if err != nil || !slices.Equal(keys, []string{"a", "b", "a"}) {
		t.Errorf("expected what the second server has after what the first one had, seen %q, %v", keys, err)
	}
}

// A lock is listed that is on another master each time before that one is asked.
func TestListingOfAClusterWhoseSlotsMove(t *testing.T) {
	const half = script.Slots / 2
	for name, c := range map[string]struct {
		moves int // how often
		want  error
	}{"once": {1, nil}, "all the time": {100, locker.ErrUnavailable}} {
		t.Run(name, func(t *testing.T) {
			moved := 0
			d := scanned(func(slot uint16, _ string) []drivers.Reply {
				lines := [2]string{"0-8191", "8192-16383"}
				if moved%2 == 1 {
					lines = [2]string{"0-8192", "8193-16383"}
				}
				at := min(1, int(slot)/(half+moved%2))
				epoch := []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"}[min(moved, 8)]
				reply := []drivers.Reply{"server", "id addr myself,master - 0 0 " + epoch + " connected " + lines[at], "0"}
				reply[0] = []string{"first", "second"}[at]
				if at == 1-moved%2 {
					reply = append(reply, "lock:moving")
				}
				if at == 0 && moved < c.moves { // when the first one has been asked, before the second one is
					moved++
				}
				return reply
			})
			s := NewCluster(cluster{Driver: d}, Options{Prefix: "lock:"})
			defer s.Close()
			keys, err := keysOf(t, s)
			switch {
			case c.want == nil && (err != nil || !slices.Contains(keys, "moving")):
				t.Errorf("expected the lock, seen %q, %v", keys, err)
			case c.want != nil && (err == nil || !strings.Contains(err.Error(), "are moving")):
				t.Errorf("expected an error that says so, seen %v", err)
			}
		})
	}
}
