//go:build unix

package cli

import (
	"cmp"
	"context"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/natstest"
	"github.com/golocker/locker/memory"
)

// conforms waits for the end of a run of conform with --json, and returns the outcomes by property. On a busy machine,
// properties in real time may fail. The suites' own tests check whether they hold.
func (p *process) conforms(t *testing.T) map[string]string {
	t.Helper()
	<-p.done
	require.NotEmpty(t, p.out.String(), p.err.String())
	results := decode[[]struct {
		Property, Outcome string
		Log               []string
	}](t, p.out.String())
	outcome, code := map[string]string{}, 0
	for _, r := range results {
		outcome[r.Property] = r.Outcome
		if r.Outcome == "fail" {
			t.Logf("%+v", r)
			code = exitFailed
		}
	}
	p.exits(t, code)
	return outcome
}

// oneOfEach has properties of each suite that all stores of the tests have to pass.
var oneOfEach = []string{
	"MutualExclusion", "KeysAreIndependent", "UnlockSparesSuccessor", "PermitsAreLimited", "WriterIsAlone",
}

// The suites run under a prefix of their own, and leave no keys.
func TestConform(t *testing.T) {
	t.Parallel()
	s, url := server(t)
	outcome := run(t, url+"?prefix=p:", "conform", "--json").conforms(t)
	for _, p := range oneOfEach {
		assert.Equal(t, "pass", outcome[p], p)
	}
	assert.Equal(t, "skip", outcome["HungStoreIsBounded"])
	assert.Empty(t, s.Keys(t, "*"))
	p := run(t, url, "conform")
	eventually(t, "it is under way", func() bool { return len(s.Keys(t, "*locker-conform*")) > 3 })
	require.NoError(t, p.Process.Signal(os.Interrupt))
	p.exits(t, exit.Signal+int(syscall.SIGINT))
	eventually(t, "nothing is left", func() bool { return len(s.Keys(t, "*")) == 0 })
}

// On another store, conform skips what it does not state. This one counts seconds, keeps labels, shows its locks and
// proves that they are held. It tells no holder of others that wait, and serves these in no order.
func TestConformOnAnotherStore(t *testing.T) {
	t.Parallel()
	outcome := run(t, natstest.Start(t).URL(), "conform", "--json").conforms(t)
	for _, p := range append(oneOfEach, "LabelNamesTheHolder", "VerifyProves", "LossIsNoticed", "LostPermitIsTold") {
		assert.Equal(t, "pass", outcome[p], p)
	}
	for _, p := range []string{"WantedIsTrue", "ServedInOrder", "PermitsServedInOrder"} {
		assert.Equal(t, "skip", outcome[p], p)
	}
}

// flawedEnv is a variable that registers the backend "flawed".
const flawedEnv = "TEST_FLAWED"

func init() {
	if os.Getenv(flawedEnv) == "" {
		return
	}
	var mu sync.Mutex
	stores := map[string]flawed{}
	config.Register("flawed", config.Kind[struct{}]{
		Open: func(_ context.Context, _ *struct{}, prefix string) (*locker.Client, error) {
			mu.Lock()
			defer mu.Unlock()
			if _, ok := stores[prefix]; !ok {
				stores[prefix] = flawed{memory.NewBackend()}
			}
			return locker.NewClient(stores[prefix]), nil
		},
	})
}

// flawed is a store that takes locks from their holders, but only if a caller needs all of several locks, as a writer
// does.
type flawed struct{ *memory.Backend }

func (f flawed) AcquireMany(
	ctx context.Context, reqs []backend.Request, c backend.Choice,
) ([]*backend.Grant, error) {
	if len(c.Gates) > 0 && cmp.Or(c.N, len(reqs)) == len(reqs) {
		for _, req := range reqs {
			_, _ = f.ForceRelease(ctx, req.Key, "")
		}
	}
	return f.Backend.AcquireMany(ctx, reqs, c)
}

// Acquire has the flaw if a caller wants all permits of a group.
func (f flawed) Acquire(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if g := req.Group; g != nil && g.Weight == g.N {
		_, _ = f.ForceRelease(ctx, req.Key, "")
	}
	return f.Backend.Acquire(ctx, req)
}

// A flaw of which a single lock shows nothing is found by the suites for semaphores, and for readers and writers.
func TestConformFindsWhatOneLockDoesNotShow(t *testing.T) {
	t.Parallel()
	p := command(t, "flawed:", "conform", "--json")
	p.Env = append(p.Env, flawedEnv+"=1")
	outcome := p.begin(t).conforms(t)
	var failed []string
	for name, o := range outcome {
		if o == "fail" {
			failed = append(failed, name)
		}
	}
	slices.Sort(failed)
	t.Logf("%q", failed)
	for _, p := range []string{"PermitsAreRefused", "WriterIsAlone"} {
		assert.Contains(t, failed, p)
	}
	for _, p := range []string{"MutualExclusion", "ManyAcquireAll"} {
		assert.Equal(t, "pass", outcome[p], p)
	}
}
