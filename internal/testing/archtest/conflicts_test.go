package archtest

import (
	"os/exec"
	"testing"
)

func TestConflictsAreResolved(t *testing.T) {
	grep := exec.Command("git", "grep", "-nE", "--untracked", "^(<<<<<<<|>>>>>>>) ")
	grep.Dir = root
	out, err := grep.Output()
	if len(out) > 0 || grep.ProcessState == nil || grep.ProcessState.ExitCode() != 1 { // 1: nothing was found
		t.Errorf("conflicts of two changes are left, or this is no checkout (%v):\n%s", err, out)
	}
}
