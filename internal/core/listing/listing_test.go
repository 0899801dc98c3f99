package listing_test

import (
	"context"
	"testing"
	"time"

	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/listing"
	"github.com/golocker/locker/internal/testing/virtual"
)

// A listing rests for as long as the last answer took, also if that has shown nothing, and for a millisecond at most.
func TestListsRestBetweenTheirQuestions(t *testing.T) {
	for _, tt := range []struct{ takes, prints, rests time.Duration }{
		{300 * time.Microsecond, 0, 300 * time.Microsecond},
		{20 * time.Millisecond, 0, time.Millisecond},
		{300 * time.Microsecond, time.Second, 0}, // the caller's loop was slow
	} {
		virtual.Test(t, func(t *testing.T) {
			var ends time.Time // of the last answer
			questions, shown := 0, 0
			ask := func() {
				if rest := time.Since(ends); questions > 0 && rest < tt.rests {
					t.Errorf("a question %v after an answer that took %v", rest, tt.takes)
				}
				time.Sleep(tt.takes)
				ends = time.Now()
				questions++
			}
			pages := func(yield func([]int, error) bool) {
				for _, names := range [][]int{{1}, nil, nil, {2}} {
					if ask(); !yield(names, nil) {
						return
					}
				}
			}
			began := time.Now()
			for _, err := range listing.Of(t.Context(), pages, func(context.Context, int) ([]inspect.Listed, error) {
				ask()
				return []inspect.Listed{{Inspection: inspect.Inspection{State: inspect.Held}}}, nil
			}) {
				if err != nil {
					t.Fatal(err)
				}
				shown++
				time.Sleep(tt.prints)
			}
			most := time.Duration(questions)*(tt.takes+tt.rests) + time.Duration(shown)*tt.prints
			if took := time.Since(began); shown != 2 || questions != 6 || tt.prints == 0 && took > most {
				t.Errorf("%d locks by %d questions in %v, at most %v", shown, questions, took, most)
			}
		})
	}
}

// A list that rests ends with its context.
func TestListsDoNotRestWhenTheirContextHasEnded(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var p listing.Pace
		p.Asks(ctx)
		time.Sleep(time.Millisecond)
		p.Answered()
		time.AfterFunc(100*time.Microsecond, cancel)
		began := time.Now()
		if p.Asks(ctx); time.Since(began) != 100*time.Microsecond {
			t.Errorf("it has rested for %v", time.Since(began))
		}
	})
}
