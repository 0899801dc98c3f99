package cli

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/testing/redistest"
)

// If the server dies while run waits for a lock, the error is about the server. It does not say to try again later.
func TestWaitingOnAServerThatDies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	url := "redis://" + s.Addr()
	heldBy(t, url, "k")
	p := run(t, url, "run", "-k", "k", "--wait", "6s", "--", "true")
	eventually(t, "it waits", func() bool { return s.Cmd(t, "ZCARD", "{lock:k}:lockqueue") == int64(1) })
	s.Kill()
	p.exits(t, exitUnavailable)
	assert.NotContains(t, p.err.String(), "try again later")
}

func TestNotesNameTheProgramOnce(t *testing.T) {
	var out bytes.Buffer
	a := &app{stderr: &out}
	a.note("%v: it ends by itself", &locker.Error{Op: "unlock", Key: "k", Err: locker.ErrUnavailable})
	assert.Equal(t, "locker: unlock \"k\": lock store unavailable: it ends by itself\n", out.String())
}
