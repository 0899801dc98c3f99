package drivers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/virtual"
)

func TestStaleConnections(t *testing.T) {
	const wrapped = "ERR Error running script (call to f_0123456789abcdef): @user_script:17: @user_script: 17: -"
	for text, stale := range map[string]bool{
		"READONLY You can't write against a read only replica.":                              true,
		wrapped + "READONLY You can't write against a read only replica.":                    true,
		"UNBLOCKED force unblock from blocking operation, instance state changed":            true,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":   true,
		"NOAUTH Authentication required.":                                                    true,
		"NOPERM User locker has no permissions to run the 'publish' command":                 false,
		"OOM command not allowed when used memory > 'maxmemory'.":                            false,
		"ERR unknown command 'READONLY', with args beginning with: READONLY":                 false,
		wrapped + "OOM command not allowed when used memory > 'maxmemory'. script: READONLY": false,
	} {
		refusal := drivers.ServerError(text)
		for _, replies := range [][]drivers.Reply{{refusal}, {"OK", nil, refusal}, {[]drivers.Reply{int64(1), refusal}}} {
			assert.Equal(t, stale, new(drivers.Lifecycle).Stale(replies), fmt.Sprint(replies))
		}
	}
	assert.False(t, new(drivers.Lifecycle).Stale([]drivers.Reply{"READONLY", nil, int64(1), []drivers.Reply{}}))
}

// A driver whose address leads to a replica for good does not reconnect with every call.
func TestStaleAtMostTwiceASecond(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var lc drivers.Lifecycle
		left := 0
		for range 10_000 {
			if lc.Stale([]drivers.Reply{drivers.ServerError("READONLY")}) {
				left++
			}
			time.Sleep(time.Millisecond)
		}
		assert.Equal(t, 20, left, "in ten seconds")
	})
}

// feed is a connection on which no messages arrive.
type feed struct {
	sent   []string
	fail   error
	failed chan error
	closed chan struct{}
	once   sync.Once
}

func newFeed() *feed { return &feed{failed: make(chan error, 1), closed: make(chan struct{})} }

func (f *feed) Receive() error {
	select {
	case err := <-f.failed:
		return err
	case <-f.closed:
		return io.ErrClosedPipe
	}
}

func (f *feed) Subscribe(channels []string) error {
	f.sent = append(f.sent, channels...)
	return f.fail
}

func (f *feed) Unsubscribe(channels []string) error {
	f.sent = slices.DeleteFunc(f.sent, func(c string) bool { return slices.Contains(channels, c) })
	return f.fail
}

func (f *feed) Close() { f.once.Do(func() { close(f.closed) }) }

func (f *feed) connect(context.Context) (drivers.Feed, error) { return f, nil }

// losses is a listener that waits for the end.
func losses() (drivers.Listener, chan error) {
	lost := make(chan error, 2)
	return drivers.Listener{Lost: func(err error) { lost <- err }}, lost
}

func TestSubscriptionSends(t *testing.T) {
	var lifecycle drivers.Lifecycle
	f := newFeed()
	l, lost := losses()
	sub, err := lifecycle.Subscribe(t.Context(), l, f.connect)
	require.NoError(t, err)
	require.NoError(t, sub.Subscribe("a", "b"))
	require.NoError(t, sub.Unsubscribe("a"))
	f.fail = io.EOF
	require.NoError(t, sub.Subscribe())
	require.NoError(t, sub.Unsubscribe())
	assert.Equal(t, []string{"b"}, f.sent)
	require.ErrorIs(t, sub.Subscribe("c"), io.EOF)
	require.ErrorIs(t, <-lost, io.EOF, "what cannot be sent ends the subscription")
	f.fail = nil
	require.ErrorIs(t, sub.Subscribe("d"), io.EOF)
	require.ErrorIs(t, sub.Unsubscribe("d"), io.EOF)
	assert.Equal(t, []string{"b", "c"}, f.sent)
	require.NoError(t, sub.Close())
	assert.Empty(t, lost)
	require.True(t, lifecycle.Shut())
}

func TestSubscriptionEnds(t *testing.T) {
	refusal := drivers.ServerError("NOPERM")
	for name, c := range map[string]struct {
		end  func(lifecycle *drivers.Lifecycle, sub drivers.Subscription, f *feed)
		want error
	}{
		"the connection fails": {func(_ *drivers.Lifecycle, _ drivers.Subscription, f *feed) { f.failed <- io.EOF },
			io.EOF},
		"the server refuses": {func(_ *drivers.Lifecycle, _ drivers.Subscription, f *feed) { f.failed <- refusal },
			refusal},
		"it is closed": {func(_ *drivers.Lifecycle, sub drivers.Subscription,
			_ *feed) {
			assert.NoError(t, sub.Close())
		}, drivers.ErrClosed},
		"its driver is closed": {func(lifecycle *drivers.Lifecycle, _ drivers.Subscription,
			_ *feed) {
			assert.True(t, lifecycle.Shut())
		}, drivers.ErrClosed},
		"everything is at once": {func(lifecycle *drivers.Lifecycle, sub drivers.Subscription, _ *feed) {
			go sub.Close()
			lifecycle.Shut()
			_ = sub.Close()
		}, drivers.ErrClosed},
		"it is closed and fails": {func(_ *drivers.Lifecycle, sub drivers.Subscription,
			f *feed) {
			_ = sub.Close()
			f.failed <- io.EOF
		}, drivers.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			var lifecycle drivers.Lifecycle
			f := newFeed()
			l, lost := losses()
			sub, err := lifecycle.Subscribe(t.Context(), l, f.connect)
			require.NoError(t, err)
			c.end(&lifecycle, sub, f)
			assert.Equal(t, c.want, <-lost)
			require.NoError(t, sub.Close())
			<-f.closed
			require.ErrorIs(t, sub.Subscribe("a"), c.want)
			lifecycle.Shut()
			assert.Empty(t, lost)
		})
	}
}

func TestOpeningFails(t *testing.T) {
	var lifecycle drivers.Lifecycle
	cause := errors.New("no")
	_, err := lifecycle.Subscribe(t.Context(), drivers.Listener{},
		func(context.Context) (drivers.Feed, error) { return nil, cause })
	require.ErrorIs(t, err, cause)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	untouched := func(context.Context) (drivers.Feed, error) { panic("not to be called") }
	_, err = lifecycle.Subscribe(ended, drivers.Listener{}, untouched)
	require.ErrorIs(t, err, context.Canceled)
	lifecycle.Shut()
	_, err = lifecycle.Subscribe(t.Context(), drivers.Listener{}, untouched)
	require.ErrorIs(t, err, drivers.ErrClosed)
}

// A client that cannot be interrupted returns a connection after the caller has left. It is closed.
func TestOpeningIsAbandoned(t *testing.T) {
	for name, want := range map[string]error{"by its context": context.DeadlineExceeded,
		"by the driver's Close": drivers.ErrClosed} {
		t.Run(name, func(t *testing.T) {
			var lifecycle drivers.Lifecycle
			f := newFeed()
			entered, release := make(chan struct{}), make(chan struct{})
			ctx := context.Background()
			if want == context.DeadlineExceeded {
				var cancel func()
				ctx, cancel = context.WithTimeout(ctx, 10*time.Millisecond)
				defer cancel()
			} else {
				go func() {
					<-entered
					lifecycle.Shut()
				}()
			}
			_, err := lifecycle.Subscribe(ctx, drivers.Listener{}, func(ctx context.Context) (drivers.Feed, error) {
				close(entered)
				<-release
				assert.Error(t, ctx.Err())
				return f, nil
			})
			require.ErrorIs(t, err, want)
			lifecycle.Shut()
			close(release)
			<-f.closed
		})
	}
}

// A client that observes the context may return an error of its own when the context ends.
func TestOpeningBrokenOff(t *testing.T) {
	var lifecycle drivers.Lifecycle
	ctx, cancel := context.WithCancel(t.Context())
	_, err := lifecycle.Subscribe(ctx, drivers.Listener{}, func(ctx context.Context) (drivers.Feed, error) {
		cancel()
		return nil, io.ErrClosedPipe
	})
	require.ErrorIs(t, err, context.Canceled)
}

// In every order of events, the connection either has an owner or is closed.
func TestOpeningRaces(t *testing.T) {
	for range 300 {
		var lifecycle drivers.Lifecycle
		ctx, cancel := context.WithCancel(context.Background())
		f := newFeed()
		l, lost := losses()
		go cancel()
		go lifecycle.Shut()
		if sub, err := lifecycle.Subscribe(ctx, l, f.connect); err == nil {
			_ = sub.Close()
			require.Error(t, <-lost)
		} else if !errors.Is(err, drivers.ErrNotSent) {
			require.ErrorIs(t, err, context.Canceled)
			<-f.closed
		}
	}
}
