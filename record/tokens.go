package record

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
)

// RaiseFences implements inspect.FenceRaiser. Tokens follow the clock of each client, so they need no raise: it waits
// until the clock of this process is past the number, and changes nothing in the store. If that would take longer than
// [Timeout], it fails at once, with an error that matches errors.ErrUnsupported and says when the clock gets there. A
// client whose clock is behind this one may grant smaller tokens, for as long as that.
func (b *Backend) RaiseFences(ctx context.Context, past uint64) error {
	if err := b.usable(); err != nil {
		return err
	}
	for {
		now := uint64(max(0, time.Now().UnixMicro()))
		if now > past {
			return nil
		}
		ahead := past - now + 1
		if ahead > uint64(b.timeout.Microseconds()) {
			return fmt.Errorf("%w: tokens in records follow the clocks of the clients, which are past %d from %s on: start "+
				"the clients then, or while nobody holds a lock, lower what the resource has stored",
				errors.ErrUnsupported, past, time.UnixMicro(int64(past)+1).UTC().Format(time.RFC3339Nano))
		}
		t := time.NewTimer(time.Duration(ahead) * time.Microsecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return unavailable(ctx.Err())
		case <-b.closing:
			t.Stop()
			return locker.ErrClosed
		}
	}
}
