package pipeline

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// A server that forgot its scripts executes none of the commands that it refuses for that, and those of the batch whose
// script it knows. Only the former are sent again.
func TestOnlyRefusedCommandsAreSentAgain(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		d.will(until(wake, ok))
		var callers sync.WaitGroup
		for range maxSenders {
			callers.Go(func() { _ = do(t.Context(), p, get) })
		}
		synctest.Wait()
		d.will(func(_ context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			replies := make([]drivers.Reply, len(cmds))
			for i, cmd := range cmds {
				replies[i] = int64(len(cmd[2]))
				if cmd[0] == "EVALSHA" && cmd[1] == "forgotten" {
					replies[i] = unknown
				}
				if cmd[0] == "EVAL" && cmd[1] != "source of forgotten" {
					t.Errorf("sent in full: %q", cmd)
				}
			}
			return replies, nil
		})
		for argument, digest := range map[string]string{"1": "known", "22": "known", "333": "forgotten",
			"4444": "forgotten"} {
			callers.Go(func() {
				cmd := script.Command{Words: drivers.Command{"EVALSHA", digest, argument}, Source: "source of " + digest}
				if r, err := p.Do(t.Context(), cmd, timeout, nil); err != nil || r != int64(len(argument)) {
					t.Errorf("%s got the answer %v, %v", argument, r, err)
				}
			})
		}
		synctest.Wait()
		close(wake)
		callers.Wait()
		if sizes := d.sizes()[maxSenders:]; !slices.Equal(sizes, []int{4, 2}) {
			t.Errorf("batches of %d, want one of 4 and one of the 2 that were refused", sizes)
		}
	})
}

// A script that the server has forgotten is sent in full by a caller who waits in the driver, too, as one that waits
// outside.
func TestUnknownScriptIsSentInFullInline(t *testing.T) {
	for _, direct := range []bool{true, false} {
		bubble(t, direct, func(t *testing.T, d *fake, p *Pipeline) {
			d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
				if cmds[0][0] == "EVALSHA" {
					return all(unknown)(ctx, cmds)
				}
				if !slices.Equal(cmds[0], []string{"EVAL", "source", "0"}) {
					t.Errorf("sent in full: %q", cmds[0])
				}
				return ok(ctx, cmds)
			})
			if r, err := p.Do(context.Background(), named, timeout, nil); err != nil || r != int64(1) {
				t.Error(r, err)
			}
			if !slices.Equal(named.Words, []string{"EVALSHA", "digest", "0"}) {
				t.Errorf("the command has become %q", named.Words)
			}
		})
	}
}

// A message to oneself is no script. Whatever answers NOSCRIPT to it, alone or in a batch, is not asked again.
func TestOnlyScriptsAreSentInFull(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		d.will(until(wake, all(unknown)))
		ready := make(chan *Call, maxSenders+2)
		for range maxSenders + 2 { // the last two are sent together
			c := &Call{Command: script.Command{Words: drivers.Command{"PUBLISH", "c", ""}}}
			p.Submit(c, func() { ready <- c })
		}
		close(wake)
		for range maxSenders + 2 {
			if e, ok := (<-ready).Reply.(drivers.ServerError); !ok || e.Code() != "NOSCRIPT" {
				t.Errorf("reply %v", e)
			}
		}
		if got := d.trips(); got != maxSenders+1 {
			t.Errorf("%d exchanges, want %d", got, maxSenders+1)
		}
	})
}
