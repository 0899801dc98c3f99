package record

import (
	"context"
	"errors"
)

// edit is what a call does to a record: it looks at it, writes, and looks again, until it is done.
type edit interface {
	// look returns what is to be written in the place of what the record says, or nothing if the call is done. fresh is
	// false if others may have replaced the record meanwhile: what is to be written is then right if the record is still
	// the same, and to be done says nothing.
	look(s *sheet, fresh bool) []change

	// sends is called before that is written.
	sends(s *sheet)

	// ends reports whether the call is done, although err says that what it wrote may not be stored.
	ends(err error) bool

	// result returns the error of a call that is done.
	result() error

	// unread returns the error of a call that cannot read the record.
	unread(err error) error
}

// run carries out an edit of the record at p. known is what the record is believed to say, or nil. If the record has a
// group, edits of this process that come together are one request.
func (b *Backend) run(ctx context.Context, p place, e edit, known *sheet) error {
	if p.at != "" {
		return b.join(ctx, p.name, e)
	}
	fresh, denied := false, 0
	for n := 0; ; n++ {
		if known == nil {
			var err error
			if known, err = b.get(ctx, p.name, false); err != nil {
				return e.unread(err)
			}
			fresh = true
		}
		changes := e.look(known, fresh)
		if len(changes) == 0 {
			return e.result()
		}
		e.sends(known)
		next, text := b.draw(known, changes)
		written, err := b.put(ctx, known, next, text)
		switch {
		case e.ends(err):
			return e.result()
		case err == nil:
			known, fresh = written, true // and see whether it lasts
			continue
		case !errors.Is(err, ErrConflict):
			return err
		}
		if known.version != "" {
			denied = 0
		} else if denied++; denied == maxDenied {
			return errDenied
		}
		known = nil
		if err := pause(ctx, n); err != nil {
			return err
		}
	}
}
