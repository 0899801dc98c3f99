//go:build unix

package cli

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/golocker/locker/cmd/locker/internal/exit"
)

// raiseTokens raises the tokens of a store, first past the clock, and then further.
func raiseTokens(t *testing.T, url string) {
	t.Helper()
	env := []string{"LOCKER_URL=" + url}
	before := uint64(time.Now().UnixMicro())
	code, out, stderr := call(env, "tokens", "raise", "--json")
	assert.Zero(t, code, stderr)
	past := decode[struct{ Past uint64 }](t, out).Past
	assert.GreaterOrEqual(t, past, before)
	assert.Greater(t, heldBy(t, url, "raised").Fence(), past)

	past += 1e10 // hours ahead of the clock
	code, out, stderr = call(env, "tokens", "raise", "--past", fmt.Sprint(past))
	assert.Zero(t, code, stderr)
	assert.Equal(t, fmt.Sprintf("tokens that are granted from now on are greater than %d\n", past), out)
	first := heldBy(t, url, "raised further").Fence()
	assert.Greater(t, first, past)
	code, out, _ = call(env, "tokens", "raise", "--quiet") // lowers nothing
	assert.Zero(t, code)
	assert.Empty(t, out)
	assert.Greater(t, heldBy(t, url, "raised at last").Fence(), past)
	assert.Greater(t, heldBy(t, url, "another slot").Fence(), past)
}

func TestTokensAreRaised(t *testing.T) {
	t.Parallel()
	_, one := server(t)
	_, three := nodes(t, 3)
	raiseTokens(t, one)
	raiseTokens(t, three)
}

// tokensFollowTheClock moves to a store of records: tokens there are past the clock, and past what a resource has seen,
// unless that is ahead of the clock.
func tokensFollowTheClock(t *testing.T, url string) {
	t.Helper()
	env := []string{"LOCKER_URL=" + url}
	seen := uint64(time.Now().UnixMicro())
	code, out, stderr := call(env, "tokens", "raise", "--json")
	assert.Zero(t, code, stderr)
	past := decode[struct{ Past uint64 }](t, out).Past
	assert.GreaterOrEqual(t, past, seen)
	assert.Greater(t, heldBy(t, url, "raised").Fence(), past)

	seen = uint64(time.Now().Add(100 * time.Millisecond).UnixMicro()) // the clock of the old store was ahead
	code, out, stderr = call(env, "tokens", "raise", "--past", fmt.Sprint(seen))
	assert.Zero(t, code, stderr)
	assert.Equal(t, fmt.Sprintf("tokens that are granted from now on are greater than %d\n", seen), out)
	assert.Greater(t, heldBy(t, url, "raised further").Fence(), seen)

	there := time.Now().Add(time.Hour).Truncate(time.Second)
	code, _, stderr = call(env, "tokens", "raise", "--past", fmt.Sprint(there.UnixMicro()-1))
	assert.Equal(t, exit.Config, code, stderr)
	assert.Contains(t, stderr, "follow the clocks of the clients")
	assert.Contains(t, stderr, there.UTC().Format(time.RFC3339))
	assert.Less(t, heldBy(t, url, "not raised").Fence(), uint64(there.UnixMicro()))
}

func TestTokensFollowTheClock(t *testing.T) {
	t.Parallel()
	tokensFollowTheClock(t, "file:"+t.TempDir())
}

func TestTokensAreNotRaised(t *testing.T) {
	t.Parallel()
	ss, three := nodes(t, 3)
	_, one := server(t)
	for want, tt := range map[string]struct {
		url, past string
		code      int
	}{
		"below 2⁵²":                     {one, "4503599627370496", exit.Usage},
		"invalid argument":              {one, "-1", exit.Usage},
		"exist only inside the process": {"memory:", "1", exit.Config},
	} {
		code, _, stderr := call([]string{"LOCKER_URL=" + tt.url}, "tokens", "raise", "--past", tt.past)
		assert.Equal(t, tt.code, code, stderr)
		assert.Contains(t, stderr, want)
	}
	ss[0].Kill()
	env := []string{"LOCKER_URL=" + three}
	code, _, stderr := call(env, "tokens", "raise")
	assert.Zero(t, code, stderr)
	ss[1].Kill()
	code, _, stderr = call(env, "tokens", "raise")
	assert.Equal(t, exit.Unavailable, code)
	assert.Contains(t, stderr, "1 of 3 nodes agreed, 2 are needed: "+ss[0].Addr())
	assert.Contains(t, stderr, "run it again")
}
