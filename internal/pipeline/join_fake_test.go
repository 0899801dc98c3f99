package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
)

// joinedDigest is the one by which joined commands call their script.
var joinedDigest = script.Join([]*script.Usual{taking("k").Usual}).Words[1]

// taking is a command whose usual case acquires a lock.
func taking(lock string) script.Command {
	return script.Command{Usual: &script.Usual{
		Lock: lock, Wait: lock + " wait", Fence: lock + " fence", Text: "|o|1|", TTL: time.Second, Quantum: 1,
		Alone: func() script.Command {
			return script.Command{Words: drivers.Command{"EVALSHA", "take", "1", lock}, Source: "source of take"}
		},
	}}
}

// leaving is a command whose usual case releases a lock.
func leaving(lock string) script.Command {
	return script.Command{IsRelease: true, Usual: &script.Usual{
		Lock: lock, Text: "0000000000000005|o|1|",
		Alone: func() script.Command {
			return script.Command{
				Words: drivers.Command{"EVALSHA", "leave", "1", lock}, Source: "source of leave", IsRelease: true,
			}
		},
	}}
}

// locksOf returns the locks of a joined command: those to acquire, and those to release. It returns false for another
// command.
func locksOf(cmd drivers.Command) (taken, left []string, joined bool) {
	if len(cmd) < 2 || cmd[1] != joinedDigest && !strings.HasPrefix(cmd[1], "-- The usual case") {
		return nil, nil, false
	}
	keys, _ := strconv.Atoi(cmd[2])
	a, _ := strconv.Atoi(cmd[3+keys])
	return cmd[3 : 3+a], cmd[3+3*a : 3+keys], true
}

// serves answers joined commands with what number says of each lock, and other commands with next.
func serves(number func(lock string) int64, next answers) answers {
	return func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		replies, err := next(ctx, cmds)
		for i, cmd := range cmds {
			if taken, left, joined := locksOf(cmd); joined && err == nil {
				var numbers []drivers.Reply
				for _, lock := range append(slices.Clone(taken), left...) {
					numbers = append(numbers, number(lock))
				}
				replies[i] = numbers
			}
		}
		return replies, err
	}
}

// joins answers joined commands with reply, whatever they contain, and other commands with next. It knows no native
// releases.
func joins(reply drivers.Reply, next answers) answers {
	return func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		replies, err := next(ctx, cmds)
		for i, cmd := range cmds {
			_, _, joined := locksOf(cmd)
			switch {
			case err != nil:
			case joined:
				replies[i] = reply
			case cmd[0] == "DELEX", cmd[0] == "DELIFEQ":
				replies[i] = drivers.ServerError("ERR unknown command '" + cmd[0] + "', with args beginning with: 'k'")
			}
		}
		return replies, err
	}
}

// together has commands gathered and sent to a server that answers as it is told. It returns the calls, when all are
// resolved, and what the driver was sent for them, by batch.
func together(
	t *testing.T, d *fake, p *Pipeline, answer answers, cmds ...script.Command,
) ([]*Call, [][]drivers.Command) {
	t.Helper()
	synctest.Wait() // all senders are idle
	wake := make(chan struct{})
	d.will(until(wake, ok))
	for range maxSenders {
		p.Submit(&Call{Command: get}, func() {})
	}
	synctest.Wait()
	d.will(answer)
	sent := d.trips()
	ready := make(chan struct{}, len(cmds))
	var calls []*Call
	for _, cmd := range cmds {
		c := &Call{Command: cmd}
		calls = append(calls, c)
		p.Submit(c, func() { ready <- struct{}{} })
	}
	close(wake)
	for range calls {
		<-ready
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return calls, d.batches[sent:]
}

// answersOf returns the replies and errors of calls as texts.
func answersOf(calls []*Call) (texts []string) {
	for _, c := range calls {
		switch {
		case c.Err == nil:
			texts = append(texts, fmt.Sprint(c.Reply))
		case errors.Is(c.Err, drivers.ErrNotSent):
			texts = append(texts, "not sent")
		default:
			texts = append(texts, "lost")
		}
	}
	return texts
}
