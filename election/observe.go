package election

import (
	"context"
	"fmt"
	"iter"

	"github.com/golocker/locker"
)

// Leader is who leads, as an observer sees it. The zero Leader means that nobody leads.
type Leader struct {
	Identity string // Config.Identity of the leader; empty if the store keeps no labels
	Term     uint64 // Term.Number of its term; 0 if the store issues no tokens
}

// Observe returns who leads, now and whenever that changes, until ctx ends:
//
//	for leader, err := range election.Observe(ctx, l, "shard-7") {
//		…
//	}
//
// A reader that is slower than the changes misses some, and gets the latest. The zero Leader means that nobody leads.
// While the store cannot be asked, the leader is not known: the reader gets the error once, and the leader again when
// the store has answered. After an error that matches errors.ErrUnsupported, locker.ErrInvalid, locker.ErrForeignKey
// or locker.ErrClosed, the sequence ends.
//
// All observers and candidates of a process that have the same Locker and key share one look at the store. A Locker
// that is an inspect.Watcher tells them of each change. Others are looked at about once per renewal interval, at
// least every 5 s: where a grant sends no message, because that would cost each acquisition of any lock. Terms of
// candidates with the same Locker are seen at once in any case. However many changes there are, the store is asked at
// most once in 20 ms. An observer sees the past: the leader may have changed when the answer arrives.
func Observe(ctx context.Context, l locker.Locker, key string) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		w := join(l, key)
		defer w.leave()
		for last := 0; ctx.Err() == nil; {
			seen, changed := w.latest()
			if seen.version > last {
				last = seen.version
				if !yield(seen.leader, seen.err) || seen.final {
					return
				}
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}

// announce calls Config.OnNewLeader for each new leader until ctx ends.
func (e *Election) announce(ctx context.Context) {
	var last Leader
	for leader, err := range Observe(ctx, e.locker, e.key) {
		switch {
		case err != nil:
			e.config.report(e.key, fmt.Errorf("observing the leader: %w", err))
		case leader != Leader{} && leader != last:
			last = leader
			e.config.OnNewLeader(leader)
		}
	}
}
