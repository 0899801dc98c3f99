package simnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
)

// A batch is divided among the servers, and put together again. Its outcome is that of its worst part.
func TestBatchForSeveralServers(t *testing.T) {
	call := func(keys ...string) drivers.Command {
		return append(drivers.Command{"EVALSHA", "digest", fmt.Sprint(len(keys))}, keys...)
	}
	batch := []drivers.Command{call("a", "{a}f"), call("b"), {"PING"}, call("d"), call("c"), call("a", "{b}f")}
	answering := func(server int) Network {
		return func(_ context.Context, cmds []drivers.Command, _ func() []drivers.Reply) (rs []drivers.Reply, _ error) {
			for _, cmd := range cmds {
				rs = append(rs, fmt.Sprint(server, cmd))
			}
			return rs, nil
		}
	}
	silent := func(context.Context, []drivers.Command, func() []drivers.Reply) ([]drivers.Reply, error) {
		return nil, io.EOF
	}
	for name, tt := range map[string]struct {
		ill   map[int]Network
		match error // of the error, if there is one that is to match
		sent  bool  // something was
	}{
		"healthy":                           {},
		"one is down":                       {ill: map[int]Network{1: Dead}, sent: true},
		"one is down, one does not answer":  {ill: map[int]Network{0: Dead, 1: silent}, match: io.EOF, sent: true},
		"none of them is there to be asked": {ill: map[int]Network{0: Dead, 1: Dead, 2: Dead}, match: drivers.ErrNotSent},
	} {
		t.Run(name, func(t *testing.T) {
			d := Cluster(NewNodes(3), func(i int) Network {
				if ill := tt.ill[i]; ill != nil {
					return ill
				}
				return answering(i)
			})
			replies, err := d.Do(t.Context(), batch...)
			if tt.ill != nil {
				if err == nil || replies != nil || errors.Is(err, drivers.ErrNotSent) == tt.sent ||
					tt.match != nil && !errors.Is(err, tt.match) {
					t.Errorf("got %v, %v", replies, err)
				}
				return
			}
			want := []drivers.Reply{
				"2 [EVALSHA digest 2 a {a}f]", "0 [EVALSHA digest 1 b]", "0 [PING]", "2 [EVALSHA digest 1 d]",
				"1 [EVALSHA digest 1 c]", drivers.ServerError("CROSSSLOT Keys in request don't hash to the same slot"),
			}
			if err != nil || !slices.Equal(replies, want) {
				t.Errorf("got %v, %v", replies, err)
			}
		})
	}
}

// timely is a context with a deadline, and without a Done channel.
type timely struct {
	context.Context
	end time.Time
}

func (c timely) Deadline() (time.Time, bool) { return c.end, true }

// With the option Direct, a driver of a node and one of a cluster keep to a deadline that nobody tells them of.
func TestDirectDriversKeepToDeadlines(t *testing.T) {
	for name, open := range map[string]func(w *Wire) drivers.Driver{
		"node": func(w *Wire) drivers.Driver {
			return New().Driver(w.DeliverInTime, Direct(func() bool { return true }))
		},
		"cluster": func(w *Wire) drivers.Driver {
			return Cluster(NewNodes(2), func(int) Network { return w.DeliverInTime }, Direct(func() bool { return true }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				var w Wire
				d := open(&w)
				if !d.(drivers.Direct).Direct() {
					t.Error("the driver is not direct")
				}
				resume := w.Hang()
				begun := time.Now()
				_, err := d.Do(timely{context.Background(), begun.Add(time.Second)}, drivers.Command{"PING"})
				if took := time.Since(begun); took != time.Second || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("returned %v after %v", err, took)
				}
				resume()
				time.Sleep(time.Second) // the abandoned call ends
				if err := d.Close(); err != nil {
					t.Error(err)
				}
				if _, err := d.Do(t.Context(), drivers.Command{"PING"}); !errors.Is(err, drivers.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			})
		})
	}
}

func ExampleServerOf() {
	fmt.Println(ServerOf("a", 3), ServerOf("b", 3), ServerOf("x{b}y", 3))
	// Output: 2 0 0
}
