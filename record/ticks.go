package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/tick"
)

// The ticks of a job, of package once, have one record, or one for each second of the minute at which they are. It has
// the last ticks that were claimed, and which attempts have claimed them. Records stay, so a lock for each tick would
// leave one for each.
//
// An attempt reads the record, and writes it again with its tick, unless that is there. So a claim is one comparison
// and swap, and doubt is what it is for a lock; see attempt. A claim needs no length, and nobody watches it: it is over
// when the window and the skew of the tick are, by the clock of whoever drops it. No other clock is behind by more than
// the skew. So an attempt that is granted the tick after that finds the window over when it then looks at its clock, as
// package once does. A renewal only asks whether an operator has taken the claim away.

const (
	// maxTicks is how many ticks a record has.
	maxTicks = 36

	// maxTicksText is how long the text of the ticks may be before one more is added: that of 35 ticks with one window. A
	// tick with another window than the one before takes up to six bytes more. So the whole text is less than 1 KiB, with
	// the longest label, too.
	maxTicksText = 26 + 34*21

	// keptTicks is how many of the last ticks stay although they are over. They protect from a clock that is wrong.
	keptTicks = 8

	// markLen is how many bytes of the token of an attempt are in the record: 60 random bits.
	markLen = 10
)

// claimed is a tick in the record of a job.
type claimed struct {
	at    int64  // in ms since 1970
	until int64  // when others may drop it: nobody claims it any more, and its attempt knows that
	mark  string // of the attempt that has claimed it
}

// mark returns what stands for an attempt.
func mark(token string) string { return token[:min(markLen, len(token))] }

// ticksOf returns the ticks of a record, those that were claimed last at the end. ok is false if the text has something
// else.
func ticksOf(text string) (all []claimed, ok bool) {
	if text == "" {
		return nil, true
	}
	rest, bad := int64(0), errors.ErrUnsupported // the first tick has its own
	for _, part := range strings.Split(text, ",") {
		f := strings.Split(part, ":")
		if len(f) != 3 {
			return nil, false
		}
		at, err := strconv.ParseInt(f[0], 36, 64)
		if f[1] != "" {
			rest, bad = strconv.ParseInt(f[1], 36, 64)
		}
		if err != nil || bad != nil || f[2] == "" {
			return nil, false
		}
		all = append(all, claimed{at, at + rest, f[2]})
	}
	return all, true
}

// textOf is the reverse of ticksOf. It leaves out what a tick has in common with the one before, when all have the same
// window.
func textOf(all []claimed) string {
	parts, before := make([]string, len(all)), int64(-1)
	for i, t := range all {
		rest := ""
		if t.until-t.at != before {
			before = t.until - t.at
			rest = strconv.FormatInt(before, 36)
		}
		parts[i] = strconv.FormatInt(t.at, 36) + ":" + rest + ":" + t.mark
	}
	return strings.Join(parts, ",")
}

// tickNameOf returns the name of the record that has a tick of a job. No lock has a record of that name. Ticks at full
// minutes have one, and others one for each second of the minute, so that there is room for a tick each second.
func (b *Backend) tickNameOf(job string, at time.Time) string {
	name := nameOf(b.prefix + job)
	if len(name)+len(tickSuffix)+len("59") > maxName {
		name = hashed(b.prefix + job)
	}
	if second := at.UTC().Second(); second > 0 {
		return name + tickSuffix + strconv.Itoa(second)
	}
	return name + tickSuffix
}

// tickSuffix is what the name of a job is followed by in that of a record of ticks. It is not hexadecimal.
const tickSuffix = "=t"

// errContext is the error of a call for a tick that has come without it. A plain lock in its place would exclude only
// those who come without it, too.
var errContext = fmt.Errorf("%w: the key is that of a tick of package once, and the context is not that of its call: "+
	"a middleware has to pass the context of its caller on", locker.ErrInvalid)

// asked returns the tick that a request is about, or nil if that is a lock. A lock of such a name that is to be kept
// for its whole TTL is what package once asks for, and nobody else.
func asked(ctx context.Context, req backend.Request) (*tick.Tick, error) {
	if _, _, ok := tick.Parse(req.Key); !ok || req.MinHold == 0 {
		return nil, nil
	}
	t := tick.From(ctx, req.Key)
	if t == nil && req.MinHold >= req.TTL {
		return nil, errContext
	}
	return t, nil
}

// readTicks reads the record of a job's ticks.
func (b *Backend) readTicks(ctx context.Context, name string) (entry, []claimed, error) {
	found, err := b.read(ctx, place{name: name})
	if err != nil {
		return entry{}, nil, err
	}
	all, _ := ticksOf(found.Ticks)
	return found, all, nil
}

// find returns the index of a tick, or -1.
func find(all []claimed, at int64) int {
	return slices.IndexFunc(all, func(c claimed) bool { return c.at == at })
}

// claim is one attempt to claim a tick. It is the Private of its Grant.
type claim struct {
	*Backend
	tick  *tick.Tick
	name  string
	mark  string
	label string

	doubt bool  // as in attempt
	over  entry // the record that it writes over
	last  uint64
}

// claim makes an attempt to claim a tick. If another one has claimed it, left is how long to wait at most before a
// further look.
func (b *Backend) claim(
	ctx context.Context, req backend.Request, t *tick.Tick,
) (g backend.Grant, left time.Duration, err error) {
	c := &claim{Backend: b, tick: t, name: b.tickNameOf(t.Job, t.At), mark: mark(req.Token), label: req.Label}
	defer func() {
		if c.doubt {
			over := c.over
			b.chores.Repeat(time.Now().Add(req.TTL+cleanupTime), func(ctx context.Context) error {
				return c.undo(ctx, &over)
			})
		}
	}()
	denied := 0
	for n := 0; ; n++ {
		found, all, err := b.readTicks(ctx, c.name)
		if err != nil {
			return backend.Grant{}, 0, err
		}
		if found.version != c.over.version {
			c.doubt = false
		}
		if i := find(all, t.At.UnixMilli()); i >= 0 && all[i].mark == c.mark {
			// The last token of the record is that of another tick, maybe.
			return backend.Grant{Fence: cmp.Or(c.last, found.Last), Private: c}, 0, nil
		} else if i >= 0 {
			rest := time.UnixMilli(all[i].until).Sub(t.Now().Round(0))
			held := &locker.HeldError{Remaining: max(0, rest)}
			if i == len(all)-1 {
				held.Label = found.Label
			}
			return backend.Grant{}, max(rest, b.poll), held
		}
		written, err := c.write(ctx, found, all)
		switch {
		case err == nil:
			return backend.Grant{Fence: written.Last, Private: c}, 0, nil
		case !errors.Is(err, ErrConflict):
			return backend.Grant{}, 0, err
		}
		if found.version != "" {
			denied = 0
		} else if denied++; denied == maxDenied {
			return backend.Grant{}, 0, errDenied
		}
		if err := pause(ctx, n); err != nil {
			return backend.Grant{}, 0, err
		}
	}
}

// write writes the record with the tick. Ticks that are over go, the first ones first, and only those whose room is
// needed.
func (c *claim) write(ctx context.Context, found entry, all []claimed) (entry, error) {
	now := c.tick.Now().UnixMilli()
	for i := 0; i < len(all) && len(all) >= keptTicks; {
		if all[i].until < now {
			all = slices.Delete(all, i, i+1)
		} else {
			i++ // of a clock that was ahead, maybe, for which later ones must not wait
		}
	}
	if len(all) >= maxTicks || len(textOf(all)) > maxTicksText {
		first := slices.MinFunc(all, func(a, b claimed) int { return cmp.Compare(a.until, b.until) })
		return entry{}, fmt.Errorf("%w: the record has %d ticks, there is no room for more, and the first of them can be "+
			"claimed for %v yet: let ticks be further apart, or the window shorter", locker.ErrUnavailable, len(all),
			time.Duration(first.until-now)*time.Millisecond)
	}
	all = append(slices.Clip(all), claimed{c.tick.At.UnixMilli(), c.tick.Drop.UnixMilli(), c.mark})
	if !c.doubt { // whichever write over this version was stored, it has the same token
		c.last = max(found.Last+1, uint64(max(1, time.Now().UnixMicro())))
	}
	if c.last > maxToken {
		return entry{}, errTokens(found.Last)
	}
	c.doubt, c.over = true, found
	text := content{State: free, Label: c.label, Last: c.last, Ticks: textOf(all)}
	written, err := c.Backend.replace(ctx, &found, &text)
	if err == nil {
		c.doubt = false
	}
	return written, err
}

// undo makes sure that the tick is not claimed by this attempt, now or later. over is the record that it writes over,
// and becomes the next one.
func (c *claim) undo(ctx context.Context, over *entry) error {
	for n := 0; ; n++ {
		all, _ := ticksOf(over.Ticks)
		label := over.Label
		if n := len(all); n > 0 && all[n-1].mark == c.mark { // whose it is
			label = ""
		}
		all = slices.DeleteFunc(all, func(t claimed) bool { return t.mark == c.mark })
		instead := content{State: free, Label: label, Last: max(over.Last, c.last, 1), Ticks: textOf(all)}
		_, err := c.Backend.replace(ctx, over, &instead)
		if !errors.Is(err, ErrConflict) {
			return err
		}
		found, all, err := c.readTicks(ctx, c.name)
		switch {
		case errors.Is(err, locker.ErrForeignKey):
			return nil
		case err != nil:
			return err
		case slices.ContainsFunc(all, func(t claimed) bool { return t.mark == c.mark }):
			*over = found
		case found.version != over.version:
			return nil
		}
		if err := pause(ctx, n); err != nil {
			return err
		}
	}
}

// isOver reports whether nobody claims the tick any more. The claim then cannot be lost.
func (c *claim) isOver() bool { return !c.tick.Now().Round(0).Before(c.tick.Until) }

// verify asks whether the record has the claim. When the claim is over, others may have dropped it. A renewal does no
// more, because a claim lasts as long as it has to.
func (c *claim) verify(ctx context.Context) error {
	if c.isOver() {
		return nil
	}
	_, all, err := c.readTicks(ctx, c.name)
	if err != nil {
		return notHeld(err)
	}
	switch i := find(all, c.tick.At.UnixMilli()); {
	case i < 0:
		return locker.ErrNotHeld
	case all[i].mark != c.mark:
		return &locker.NotHeldError{Reason: locker.LostTakenOver}
	}
	return nil
}

// release takes the claim back if it need not be kept. Otherwise it asks whether an operator has done so. A claim that
// cannot be asked for stays: there is nothing to repeat.
func (c *claim) release(ctx context.Context, keep time.Duration) error {
	if c.isOver() {
		return nil
	}
	if keep > 0 {
		if err := c.verify(ctx); errors.Is(err, locker.ErrNotHeld) {
			return err
		}
		return nil
	}
	found, _, err := c.readTicks(ctx, c.name)
	if err != nil {
		return err
	}
	return c.undo(ctx, &found)
}

// tickOf returns the claim of a tick whose lock has that name, and shows it. The claim is nil if there is none, or if
// nobody else can claim the tick any more, so that the lock is like any other one.
func (b *Backend) tickOf(ctx context.Context, lock string) (*claim, inspect.Inspection, error) {
	job, at, ok := tick.Parse(lock)
	if !ok {
		return nil, inspect.Inspection{}, nil
	}
	c := &claim{Backend: b, name: b.tickNameOf(job, at)}
	found, all, err := c.readTicks(ctx, c.name)
	i := find(all, at.UnixMilli())
	if err != nil || i < 0 {
		return nil, inspect.Inspection{}, err
	}
	c.mark, c.over = all[i].mark, found
	shown := all[i].inspection()
	if shown.State == inspect.Free {
		return nil, inspect.Inspection{}, nil
	}
	return c, shown, nil
}

// inspection shows a tick to people. It is free when nobody else can claim it any more.
func (c *claimed) inspection() inspect.Inspection {
	rest := time.Until(time.UnixMilli(c.until))
	if rest <= 0 {
		return inspect.Inspection{State: inspect.Free}
	}
	return inspect.Inspection{State: inspect.Kept, Owner: c.mark[:min(ownerPrefixLen, len(c.mark))], Remaining: rest}
}
