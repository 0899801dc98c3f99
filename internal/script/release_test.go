package script_test

import (
	"strings"
	"testing"

	"github.com/golocker/locker/internal/script"
)

// All scripts that undo count as releases, those added later, too.
func TestEveryReleaseIsSentAtRest(t *testing.T) {
	for _, s := range []*script.Source{
		acquireScript, raiseScript, extendScript, releaseScript, enqueueScript, claimScript, handoverScript, turnScript,
		turnReleaseScript,
	} {
		if got, want := s.IsRelease(), strings.Contains(s.Text(), script.Expand("undo.lua")); got != want {
			t.Errorf("counts as a release: %v, want %v: %.60s", got, want, s.Text())
		}
	}
}
