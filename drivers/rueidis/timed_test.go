package rueidis

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/golocker/locker/internal/virtual"
)

// byTimeAlone has a deadline and tells nobody when it has passed.
type byTimeAlone struct {
	context.Context
	end time.Time
}

func (c byTimeAlone) Deadline() (time.Time, bool) { return c.end, true }

// What the client derives from the context of a call, to dial for instance, may outlive the call.
func TestContextsThatOutliveTheCall(t *testing.T) {
	end := time.Now().Add(time.Hour)
	for name, early := range map[string]bool{"derived before the call has returned": true, "derived after": false} {
		t.Run(name, func(t *testing.T) {
			var all timeds
			call := all.begin(byTimeAlone{context.Background(), end}, end)
			if !early {
				all.finish(call)
			}
			derived, cancel := context.WithTimeout(call, time.Minute)
			defer cancel()
			if early {
				if err := call.Err(); err != nil {
					t.Errorf("ended before its time: %v", err)
				}
				all.finish(call)
			}
			select {
			case <-derived.Done():
			case <-time.After(10 * time.Second):
				t.Fatal("the call has returned, and what was derived from its context goes on")
			}
			if err := derived.Err(); !errors.Is(err, context.Canceled) {
				t.Errorf("it ended with %v", err)
			}
			if next := all.begin(byTimeAlone{context.Background(), end}, end); next == call || next.Err() != nil {
				t.Error("it is used again, although it has ended")
			}
		})
	}
}

// One that was used again is that of its last call only.
func TestContextsAreUsedAgain(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var all timeds
		begin := func(d time.Duration) *timed {
			end := time.Now().Add(d)
			return all.begin(byTimeAlone{context.Background(), end}, end)
		}
		first := begin(time.Second)
		done := first.Done()
		time.Sleep(time.Second - time.Nanosecond)
		all.finish(first)
		second := begin(time.Second)
		if second != first || second.Done() != done {
			t.Error("a call that has returned in time, and left nothing, makes another context")
		}
		time.Sleep(time.Second - time.Nanosecond)
		if err := second.Err(); err != nil {
			t.Errorf("the second call ended by the deadline of the first: %v", err)
		}
		time.Sleep(time.Nanosecond)
		<-done
		if err := second.Err(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended with %v", err)
		}
		all.finish(second)
		third := begin(time.Second)
		_, cancel := context.WithCancel(third)
		cancel()
		all.finish(third)
		if begin(time.Second) == third {
			t.Error("what was derived from it may ask for its values, and gets those of the next call")
		}
		if begin(time.Second) == second {
			t.Error("a call that was late is followed by one that has ended before it began")
		}
	})
}
