package node

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"strings"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/listing"
	"github.com/golocker/locker/internal/redis/script"
)

// List implements inspect.Lister. It makes the server go through all of its keys, in steps.
func (n *Node) List(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	return listing.Of(ctx, n.Pages(ctx, prefix), listing.By(n.Inspect))
}

// Pages yields what may be keys of locks that begin with prefix, some at a time. Each key is there that the server has
// all the time. If another server takes its place, it begins anew.
func (n *Node) Pages(ctx context.Context, prefix string) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		for anew := true; anew; {
			first, err := n.scan(ctx, 0, prefix, "0")
			if err != nil {
				yield(nil, err)
				return
			}
			var more bool
			if anew, more = n.rest(ctx, 0, prefix, first, yield); !more {
				return
			}
		}
	}
}

// rest yields the first page of a server and all that follow. anew says that another server has answered, or one that
// does not know the cursor. more is false if the loop is over.
func (n *Node) rest(
	ctx context.Context, slot uint16, prefix string, p script.Page, yield func([]string, error) bool,
) (anew, more bool) {
	for id := p.ID; ; {
		var keys []string
		for _, name := range p.Keys {
			key := strings.TrimPrefix(name, n.prefix)
			if key != "" && len(key) <= locker.MaxKey && script.Reserved(n.prefix, key) == "" {
				keys = append(keys, key)
			}
		}
		if !yield(keys, nil) { // also if there are none, because the caller paces the listing
			return false, false
		}
		if p.Cursor == "0" {
			return false, true
		}
		var err error
		if p, err = n.scan(ctx, slot, prefix, p.Cursor); err != nil {
			yield(nil, err)
			return false, false
		}
		if p.ID != id {
			return true, true
		}
	}
}

func (n *Node) scan(ctx context.Context, slot uint16, prefix, cursor string) (script.Page, error) {
	n.inFlight.Enter() // and not for the whole listing: the loop may be slow, and Close waits
	defer n.inFlight.Leave()
	reply, err := n.ask(ctx, script.Scan(slot, n.prefix, prefix, cursor, n.sharded))
	var p script.Page
	if err == nil {
		p, err = script.ReadPage(reply)
	}
	return p, n.fault(err)
}

// settling is how often the masters of a cluster are gone through while slots move.
const settling = 3

var errSettling = errors.New("slots of the cluster are moving: what was listed is true, but locks of these slots may " +
	"be missing: list them again when they have moved")

// List implements inspect.Lister. It makes each master go through all of its keys. While slots move, it goes through
// the masters that have them once more.
func (c *Cluster) List(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	return listing.Of(ctx, c.pages(ctx, prefix), listing.By(c.Inspect))
}

func (c *Cluster) pages(ctx context.Context, prefix string) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		n := New(Lend(c.driver), c.options)
		defer func() { _ = CloseWithin(ctx, n) }()
		done := make(map[string]bool) // what a master has said of itself before all of its keys were listed
		for range settling {
			settled, more := n.masters(ctx, prefix, done, yield)
			if settled || !more {
				return
			}
		}
		yield(nil, n.fault(errSettling))
	}
}

// masters yields the keys of the masters of a cluster that are not done, as they are now. settled says that they were
// all done, and that no slot moves.
func (n *Node) masters(
	ctx context.Context, prefix string, done map[string]bool, yield func([]string, error) bool,
) (settled, more bool) {
	settled = true
	for slot := 0; slot < script.Slots; {
		first, err := n.scan(ctx, uint16(slot), prefix, "0")
		if err != nil {
			yield(nil, err)
			return false, false
		}
		state, slots, moving := ownState(first)
		end := slots[uint16(slot)]
		if end == 0 { // the server to which the slot moves has answered
			slot, settled = slot+1, false
			continue
		}
		settled = settled && !moving
		if !done[state] {
			settled = false
			anew, more := n.rest(ctx, uint16(slot), prefix, first, yield)
			if !more {
				return false, false
			}
			done[state] = !anew && !moving
		}
		slot = end
	}
	return settled, true
}

// ownState reads what a server says about itself. The state is another one after it has given or got a slot, and ends
// has the ends of its ranges of slots, by each of their slots.
func ownState(p script.Page) (state string, ends map[uint16]int, moving bool) {
	ends = make(map[uint16]int)
	fields := strings.Fields(p.Line)
	fields = fields[min(6, len(fields)):] // the epoch, a word, and the slots
	for _, f := range fields[min(2, len(fields)):] {
		if strings.HasPrefix(f, "[") {
			moving = true
			continue
		}
		from, to, isRange := strings.Cut(f, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		for s := first; err == nil && err2 == nil && s <= last; s++ {
			ends[uint16(s)] = int(last) + 1
		}
	}
	return p.ID + strings.Join(fields, " "), ends, moving
}
