package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/golocker/locker/drivers"
)

// echo answers each command with its name.
type echo struct{ drivers.Driver }

var errEcho = errors.New("echo")

func (echo) Do(_ context.Context, cmds ...drivers.Command) ([]drivers.Reply, error) {
	var replies []drivers.Reply
	for _, c := range cmds {
		if c[0] == "fail" {
			return nil, errEcho
		}
		replies = append(replies, c[0])
	}
	return replies, nil
}

func (echo) Close() error { return nil }

func TestGathererAnswersEachCallerWithItsOwnReplies(t *testing.T) {
	g := newGatherer(echo{})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
			replies, err := g.Do(t.Context(), drivers.Command{a}, drivers.Command{b})
			if err != nil || !slices.Equal(replies, []drivers.Reply{a, b}) {
				t.Errorf("%v, %v", replies, err)
			}
		})
	}
	wg.Wait()
	if _, err := g.Do(t.Context(), drivers.Command{"fail"}); !errors.Is(err, errEcho) {
		t.Errorf("the driver's error is lost: %v", err)
	}
	g.end()
	if _, err := g.Do(t.Context(), drivers.Command{"a"}); !errors.Is(err, drivers.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}
