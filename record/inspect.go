package record

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

// ownerPrefixLen is how many bytes of an owner's token are shown.
const ownerPrefixLen = 8

// inspection shows a record to people.
func inspection(e *entry) inspect.Inspection {
	left, seen := e.left(), e.watched()
	if left == 0 { // maybe because nobody has taken the lock since its time was over
		return inspect.Inspection{State: inspect.Free, Fence: e.Last, Seen: seen}
	}
	i := inspect.Inspection{
		State: inspect.Kept, Owner: e.Owner[:min(ownerPrefixLen, len(e.Owner))], Fence: e.Token,
		Remaining: min(left, e.length()), Seen: seen,
	}
	if e.State == held {
		i.State, i.Label = inspect.Held, e.Label
		i.Held = time.Duration(e.Age)*time.Millisecond + time.Since(e.since)
	}
	return i
}

// Inspect implements [inspect.Inspector]. With a [Clock], Remaining and Held are exact, and Seen is 0. Otherwise Seen
// is set, Remaining is what is left for those who go on watching the lock since then, and Held is too short by the age
// that the record had when it was first seen.
func (b *Backend) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	if err := b.usable(); err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	c, shown, err := b.tickOf(ctx, key)
	if c != nil {
		return shown, nil
	}
	var found entry
	if err == nil {
		found, err = b.read(ctx, b.placeOf(key))
	}
	switch {
	case errors.Is(err, locker.ErrForeignKey):
		return inspect.Inspection{State: inspect.Foreign}, nil
	case err != nil:
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	return inspection(&found), nil
}

// Examine implements [inspect.Examiner]. It asks nothing, unless the Store is an Examiner, too.
func (b *Backend) Examine(ctx context.Context) []inspect.Finding {
	text := fmt.Sprintf("clients look every %v at most while they wait", b.poll)
	switch {
	case b.timing.skew > 0:
		text += fmt.Sprintf("; the store tells its time, and its clocks may differ by %v", b.timing.skew)
	case b.now().id == "":
		text += "; nobody else counts the TTL, so what a holder that has died had, or MinHold keeps, goes to one that has " +
			"watched it for so long"
	}
	found := []inspect.Finding{{Check: "polling", Level: inspect.OK, Text: text}}
	if x, ok := b.store.(inspect.Examiner); ok {
		found = append(found, x.Examine(ctx)...)
	}
	return found
}

// ForceRelease implements [inspect.Inspector].
func (b *Backend) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	if err := b.usable(); err != nil {
		return inspect.Inspection{State: inspect.Unknown}, err
	}
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	c, shown, err := b.tickOf(ctx, key)
	switch {
	case err != nil:
		return inspect.Inspection{State: inspect.Unknown}, err
	case c != nil && !strings.HasPrefix(c.mark, mark(owner)):
		return shown, locker.ErrNotHeld
	case c != nil:
		return shown, c.undo(ctx, &c.over)
	}
	p := b.placeOf(key)
	f := &force{at: p.at, owner: owner, sent: &content{}}
	err = b.run(ctx, p, f, nil)
	return f.shown, err
}

// force releases a lock by force.
type force struct {
	at, owner string
	was       entry    // what was to be replaced
	next      *content // what is to be written
	sent      *content // what was written last
	shown     inspect.Inspection
	err       error
}

func (f *force) sends(*sheet)    { f.sent = f.next }
func (f *force) ends(error) bool { return false }
func (f *force) result() error   { return f.err }

func (f *force) unread(err error) error {
	f.shown = inspect.Inspection{State: inspect.Unknown}
	if errors.Is(err, locker.ErrForeignKey) {
		f.shown.State = inspect.Foreign
	}
	return err
}

// look implements edit.
func (f *force) look(s *sheet, _ bool) []change {
	found, nonce := s.entry(f.at), f.sent.Nonce
	f.err = nil
	after, _ := found.follows([]string{nonce}, &f.was)
	switch {
	case nonce != "" && (found.is(nonce) || after):
		return nil // it is stored, also if its success was reported as a conflict
	case found.left() == 0 || !strings.HasPrefix(found.Owner, f.owner) || found.State == kept && f.owner != "",
		nonce != "" && found.Owner != f.was.Owner: // the lock has changed hands: the new owner keeps it
		f.shown, f.err = inspection(&found), locker.ErrNotHeld
		return nil
	}
	f.was, f.shown = found, inspection(&found)
	f.next = &content{State: free, Last: found.Last, Over: found.Over}
	return []change{{at: f.at, next: f.next}}
}
