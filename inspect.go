package locker

import (
	"context"
	"errors"
	"fmt"

	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/ending"
)

var errNoInspector = fmt.Errorf("the backend cannot show the state of its locks: %w", errors.ErrUnsupported)

// Inspect implements [inspect.Inspector].
func (c *Client) Inspect(ctx context.Context, key string) (inspect.Inspection, error) {
	return c.inspect(ctx, "inspect", key, func(i inspect.Inspector) (inspect.Inspection, error) {
		return i.Inspect(ctx, key)
	})
}

// ForceRelease implements [inspect.Inspector].
func (c *Client) ForceRelease(ctx context.Context, key, owner string) (inspect.Inspection, error) {
	return c.inspect(ctx, "release", key, func(i inspect.Inspector) (inspect.Inspection, error) {
		return i.ForceRelease(ctx, key, owner)
	})
}

var errNoWatcher = fmt.Errorf("the backend does not tell of changes: %w", errors.ErrUnsupported)

// Watch implements [inspect.Watcher].
func (c *Client) Watch(key string, changed func()) (stop func(), err error) {
	w, ok := c.backend.(inspect.Watcher)
	if !ok {
		return nil, &Error{"inspect", key, errNoWatcher}
	}
	return w.Watch(key, changed)
}

// Examine implements [inspect.Examiner]. It returns nil if the backend does not, and if the Client is closed.
func (c *Client) Examine(ctx context.Context) []inspect.Finding {
	e, ok := c.backend.(inspect.Examiner)
	if !ok || !c.enter(&c.attempts) {
		return nil
	}
	defer c.attempts.Done()
	return e.Examine(ctx)
}

func (c *Client) inspect(
	ctx context.Context, op, key string, ask func(inspect.Inspector) (inspect.Inspection, error),
) (inspect.Inspection, error) {
	seen := inspect.Inspection{State: inspect.Unknown}
	o := newOptions(nil)
	err := o.validate(key)
	i, ok := c.backend.(inspect.Inspector)
	switch {
	case err != nil:
	case !ok:
		err = errNoInspector
	case ending.Of(ctx) != nil:
		err = withContext(ctx, nil)
	case !c.enter(&c.attempts):
		err = ErrClosed
	default:
		seen, err = ask(i)
		c.attempts.Done()
		if err = fromBackend(err); err != nil {
			err = withContext(ctx, err)
		}
	}
	if err != nil {
		return seen, &Error{op, key, err}
	}
	return seen, nil
}
