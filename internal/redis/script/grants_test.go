package script

import (
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
)

// What grants or prolongs a lock has to be confirmed, and nothing else: a caller whom the server has refused must learn
// why, also while replicas are missing.
func TestGrants(t *testing.T) {
	a := Attempt{Keys: KeysOf("p:", "k"), Token: "o", Node: 1}
	list := func(replies ...drivers.Reply) drivers.Reply { return replies }
	for name, test := range map[string]struct {
		cmd     Command
		yes, no []drivers.Reply
	}{
		"acquire": {
			a.Acquire(time.Second, 1, 0), []drivers.Reply{int64(1763000000000000)},
			[]drivers.Reply{list(int64(0), int64(5), int64(7), "o", "label"), int64(-1), int64(-2), int64(-4), nil},
		},
		"enqueue": {
			a.Enqueue(time.Second, time.Second, 0, ""), []drivers.Reply{int64(7), list(int64(1), int64(7), int64(500))},
			[]drivers.Reply{
				list(int64(0), int64(5), int64(1), int64(2000), int64(9), "label"), list(int64(-1)), list(int64(-2)),
			},
		},
		"claim": {
			a.Claim(time.Second), []drivers.Reply{
				list(int64(1), int64(7), int64(500)), list(int64(1), int64(7), int64(500), int64(128)),
			},
			[]drivers.Reply{list(int64(0)), list(int64(1), int64(7), int64(500), int64(0))},
		},
		"extend": {
			a.Extend(time.Second, 7), []drivers.Reply{int64(1)},
			[]drivers.Reply{int64(0), int64(3), int64(4), int64(33)},
		},
		"export": {
			Release{Attempt: a}.Export(".text", time.Second), []drivers.Reply{int64(1)},
			[]drivers.Reply{int64(0), int64(3), int64(4)},
		},
		"resume": {
			a.Resume(".text", time.Second), []drivers.Reply{int64(1763000000000000)},
			[]drivers.Reply{int64(0), int64(-1), int64(-2), list(int64(-3), int64(5)), nil},
		},
	} {
		if test.cmd.Grants == nil {
			t.Errorf("%s: nothing of it is confirmed", name)
			continue
		}
		for _, r := range test.yes {
			if !test.cmd.Grants(r) {
				t.Errorf("%s: %v does not count as a grant", name, r)
			}
		}
		for _, r := range append(test.no, drivers.ServerError("OOM")) {
			if test.cmd.Grants(r) {
				t.Errorf("%s: %v counts as a grant", name, r)
			}
		}
	}
	r := Release{Attempt: a, Notify: NotifyQueue}
	for _, cmd := range []Command{
		r.Command(), a.Inspect(), a.Count(""), a.Force("v", time.Second, false, nil), a.Ask("id", time.Second, 0, ""),
	} {
		if cmd.Grants != nil {
			t.Errorf("%v waits for replicas", cmd.Words)
		}
	}
}

// A timeout of 0 would be none for the server.
func TestWaitAlwaysEnds(t *testing.T) {
	for timeout, want := range map[time.Duration]string{
		time.Second: "1000", 1500 * time.Microsecond: "2", 0: "1", -time.Hour: "1",
	} {
		if cmd := Wait(3, timeout); !slices.Equal(cmd, drivers.Command{"WAIT", "3", want}) {
			t.Errorf("%v: %v", timeout, cmd)
		}
	}
}
