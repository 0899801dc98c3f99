package drivers_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/golocker/locker/drivers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServerErrorCode(t *testing.T) {
	assert.Equal(t, "NOSCRIPT", drivers.ServerError("NOSCRIPT No matching script.").Code())
	assert.Equal(t, "ERR", drivers.ServerError("ERR").Code())
	assert.Equal(t, "ERR some  prose", drivers.ServerError("ERR some  prose").Error())
	assert.Equal(t, "ERR unknown command 'EVALSHA'",
		drivers.ServerError("ERR unknown command 'EVALSHA', with args beginning with: 'sha' '1' '|secret' ").Error())
}

// The prefix that servers before Redis 7 put before an error in a script is removed, and is not mistaken for a code.
func TestServerErrorInAScript(t *testing.T) {
	const (
		raised   = "ERR Error running script (call to f_092d5cba7695de018059087930e9934ac3b0a9ad): @user_script:17: "
		full     = "OOM command not allowed when used memory > 'maxmemory'."
		readOnly = "READONLY You can't write against a read only replica."
		foreign  = "WRONGTYPE Operation against a key holding the wrong kind of value"
		noRight  = "The user executing the script can't run this command or subcommand"
		unknown  = "Unknown Redis command called from Lua script"
		strict   = "ERR Error running script (call to f_092d5cba7695de018059087930e9934ac3b0a9ad): " +
			"@enable_strict_lua:15: no -OOM"
		quoted = "ERR no error of @user_script:1: OOM"
	)
	for reply, want := range map[string]struct{ code, text string }{
		raised + "@user_script: 17: -" + full:     {"OOM", full},
		raised + "@user_script: 17: -" + readOnly: {"READONLY", readOnly},
		raised + foreign:                          {"WRONGTYPE", foreign},
		raised + "@user_script: 17: " + noRight:   {"ERR", "ERR " + noRight},
		raised + "@user_script: 17: " + unknown:   {"ERR", "ERR " + unknown},
		"@user_script: 1: -" + full:               {"OOM", full},
		"@user_script: 1: " + noRight:             {"ERR", "ERR " + noRight},
		strict:                                    {"ERR", strict},
		quoted:                                    {"ERR", quoted},
		"":                                        {"", ""},
	} {
		assert.Equal(t, want.code, drivers.ServerError(reply).Code(), reply)
		assert.Equal(t, want.text, drivers.ServerError(reply).Error(), reply)
	}
}

func TestNotSentMatchesBoth(t *testing.T) {
	err := drivers.NotSent(io.EOF)
	require.ErrorIs(t, err, drivers.ErrNotSent)
	require.ErrorIs(t, err, io.EOF)
	assert.Equal(t, "EOF", err.Error())
	require.ErrorIs(t, drivers.ErrClosed, drivers.ErrNotSent)
}

func TestRefused(t *testing.T) {
	refusal := drivers.ServerError("NOAUTH")
	assert.Equal(t, []drivers.Reply{refusal, refusal}, drivers.Refused(refusal, 2))
}

func TestLifecycle(t *testing.T) {
	var lifecycle drivers.Lifecycle
	require.NoError(t, lifecycle.Enter(t.Context()))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := lifecycle.Enter(ended)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, drivers.ErrNotSent)
	assert.True(t, lifecycle.Shut())
	assert.False(t, lifecycle.Shut())
	require.ErrorIs(t, lifecycle.Enter(ended), drivers.ErrClosed)
}

func TestOutcome(t *testing.T) {
	lost, unsent := errors.New("lost"), errors.New("unsent")
	notSent := func(err error) bool { return errors.Is(err, unsent) }
	never := func(error) bool { return false }
	undialled := drivers.NotSent(unsent) // as Config.Dial returns it
	for name, c := range map[string]struct {
		failures []error
		notSent  func(error) bool
		want     error
		certain  bool
	}{
		"replies":                        {nil, notSent, nil, false},
		"all unsent":                     {[]error{unsent, unsent}, notSent, unsent, true},
		"one unsent":                     {[]error{unsent}, notSent, unsent, false},
		"one lost":                       {[]error{lost}, notSent, lost, false},
		"one of either":                  {[]error{unsent, lost}, notSent, lost, false},
		"one undialled":                  {[]error{undialled}, notSent, unsent, false},
		"all undialled":                  {[]error{undialled, undialled}, notSent, unsent, true},
		"all undialled, after something": {[]error{undialled, undialled}, never, unsent, false},
	} {
		t.Run(name, func(t *testing.T) {
			replies, err := drivers.Outcome([]drivers.Reply{"a", "b"}, c.failures, c.notSent)
			if c.want == nil {
				require.NoError(t, err)
				assert.Equal(t, []drivers.Reply{"a", "b"}, replies)
				return
			}
			assert.Nil(t, replies)
			require.ErrorIs(t, err, c.want)
			assert.Equal(t, c.certain, errors.Is(err, drivers.ErrNotSent))
		})
	}
}

func TestAwait(t *testing.T) {
	answer := func() ([]drivers.Reply, error) { return []drivers.Reply{"a"}, io.EOF }
	for _, ctx := range []context.Context{context.Background(), t.Context()} {
		replies, err := drivers.Await(ctx, answer)
		assert.Equal(t, []drivers.Reply{"a"}, replies)
		require.ErrorIs(t, err, io.EOF)
	}
	ctx, cancel := context.WithCancel(t.Context())
	release, entered := make(chan struct{}), make(chan struct{})
	defer close(release)
	go func() {
		<-entered
		cancel()
	}()
	_, err := drivers.Await(ctx, func() ([]drivers.Reply, error) {
		close(entered)
		<-release
		return nil, nil
	})
	require.ErrorIs(t, err, context.Canceled)
	assert.NotErrorIs(t, err, drivers.ErrNotSent, "who knows what an abandoned call has sent")
}

func TestDialFailures(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = mute.Close() }()
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for name, c := range map[string]struct {
		ctx context.Context
		cfg drivers.Config
	}{
		"nobody listens": {t.Context(), drivers.Config{Network: "tcp", Addr: "127.0.0.1:1"}},
		"no such socket": {t.Context(),
			drivers.Config{Network: "unix", Addr: filepath.Join(t.TempDir(), "none")}},
		"no such network": {t.Context(), drivers.Config{Network: "pigeon", Addr: "127.0.0.1:1"}},
		"handshake outlasts the time": {t.Context(),
			drivers.Config{Network: "tcp", Addr: mute.Addr().String(), TLS: &tls.Config{},
				Timeout: 20 * time.Millisecond}},
		"handshake outlasts the caller": {soon,
			drivers.Config{Network: "tcp", Addr: mute.Addr().String(), TLS: &tls.Config{}}},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := c.cfg.Dial(c.ctx)
			assert.Nil(t, conn)
			require.ErrorIs(t, err, drivers.ErrNotSent)
			assert.True(t, drivers.DialFailed(err))
		})
	}
	_, err = net.Dial("tcp", "127.0.0.1:1")
	assert.True(t, drivers.DialFailed(err), "of a client that dials for itself")
	for _, err := range []error{io.EOF, context.DeadlineExceeded, &net.OpError{Op: "read", Err: io.EOF}, nil} {
		assert.False(t, drivers.DialFailed(err), "%v", err)
	}
}

// A Redis that does not speak TLS takes the first message of a handshake for the beginning of a command, and waits for
// the rest. The error says so.
func TestHandshakeWithAServerThatDoesNotSpeakTLS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	cfg := drivers.Config{Network: "tcp", Addr: l.Addr().String(), TLS: &tls.Config{}, Timeout: 100 * time.Millisecond}
	_, err = cfg.Dial(t.Context())
	require.ErrorIs(t, err, drivers.ErrNotSent)
	require.ErrorContains(t, err, "does the server speak TLS on this port?")
	require.NotErrorIs(t, err, context.DeadlineExceeded) // the caller's has not passed
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cfg.Timeout = time.Hour
	_, err = cfg.Dial(ctx)
	require.ErrorIs(t, err, context.Canceled)
}
