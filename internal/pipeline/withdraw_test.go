package pipeline

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
)

// An acquisition that was not executed, because its case was not the usual one or because it was joined, is not sent
// again for a caller that has left meanwhile. It would take a lock that has become free since, and nobody would hold
// it. A release is sent again.
func TestAcquisitionOfACallerThatHasLeft(t *testing.T) {
	unusual := serves(func(string) int64 { return 0 }, all("by itself"))
	joined := joins(drivers.ServerError("TRYAGAIN Multiple keys request during rehashing of slot"), all("by itself"))
	for _, cmd := range []script.Command{taking("a"), leaving("a"), taking("joined"), leaving("joined")} {
		answer := unusual
		if cmd.Usual.Lock == "joined" {
			answer = joined
		}
		bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
			wake := make(chan struct{})
			d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
				<-wake
				return answer(ctx, cmds)
			})
			c := &Call{Command: cmd}
			p.Submit(c, func() { t.Error("told of a call that others follow") })
			synctest.Wait()
			told := make(chan struct{})
			if p.Withdraw(c) || p.Follow(c, func() { close(told) }) {
				t.Fatal("it is not under way")
			}
			close(wake)
			<-told
			if cmd.IsRelease && c.Reply != "by itself" {
				t.Errorf("the release came to %v, %v", c.Reply, c.Err)
			}
			if !cmd.IsRelease && (!errors.Is(c.Err, drivers.ErrNotSent) || d.trips() != 1) {
				t.Errorf("the acquisition came to %v, %v in %d exchanges", c.Reply, c.Err, d.trips())
			}
		})
	}
}
