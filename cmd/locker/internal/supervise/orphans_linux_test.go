package supervise

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker"
	"github.com/golocker/locker/cmd/locker/internal/exit"
)

// Without /proc, the user is told before a lock is taken. The guard could not be started, nor what the command leaves
// be found.
func TestWithoutProc(t *testing.T) {
	t.Cleanup(func() { proc = "/proc" })
	proc = t.TempDir()
	for _, do := range []func(context.Context, *Options, func() (locker.Locker, error)) error{Run, Elect} {
		err := do(t.Context(), &Options{}, func() (locker.Locker, error) {
			t.Error("the store was opened")
			return nil, locker.ErrUnavailable
		})
		assert.Equal(t, exit.OSErr, exit.Of(err).Code)
		assert.EqualError(t, err, "/proc is not mounted, and the processes of the command are found there: "+
			"mount -t proc proc /proc")
	}
}
