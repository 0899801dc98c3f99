package rueidis

import (
	"context"
	"errors"
	"testing"
	"time"
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
			call := &timed{Context: byTimeAlone{context.Background(), end}, end: end}
			if !early {
				call.stop()
			}
			derived, cancel := context.WithTimeout(call, time.Minute)
			defer cancel()
			if early {
				if err := call.Err(); err != nil {
					t.Errorf("ended before its time: %v", err)
				}
				call.stop()
			}
			select {
			case <-derived.Done():
			case <-time.After(10 * time.Second):
				t.Fatal("the call has returned, and what was derived from its context goes on")
			}
			if err := derived.Err(); !errors.Is(err, context.Canceled) {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}
