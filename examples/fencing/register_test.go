package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/memory"
)

func TestRegister(t *testing.T) {
	r := &register{rule: fences, balance: 1}
	for _, step := range []struct {
		token uint64
		write int // 0: read
		want  error
	}{
		{token: 5}, {token: 5}, {token: 5, write: 2}, {token: 4, write: 3, want: errStale}, {token: 4, want: errStale},
		{token: 9}, {token: 5, write: 3, want: errStale}, {token: 9, write: 4}, {token: 9, write: 5},
		{token: 8, want: errStale},
	} {
		var err error
		if step.write == 0 {
			_, err = r.read(t.Context(), step.token)
		} else {
			err = r.write(t.Context(), step.token, step.write)
		}
		assert.Equal(t, step.want, err, "%+v", step)
	}
	assert.Equal(t, 5, r.balance)
}

// TestPlayNoticesALateWrite checks that the program fails if a register accepts a late write although it claims to
// check tokens.
func TestPlayNoticesALateWrite(t *testing.T) {
	l := memory.New()
	defer l.Close()
	var out bytes.Buffer
	p := &play{locker: l, out: &out, rule: ignores, resource: &register{rule: ignores, balance: 100}}
	require.NoError(t, p.run(t.Context(), between), "nothing is expected of it")
	p.safe = true
	assert.ErrorContains(t, p.balance(t.Context()), "VIOLATION: a register that ignores tokens accepted a late write")
}
