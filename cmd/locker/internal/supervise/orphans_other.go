//go:build unix && !linux

package supervise

import (
	"os"
	"syscall"
	"time"
)

// tracksOrphans is false: processes that leave the command's process group cannot be found.
const tracksOrphans = false

func adoptOrphans() {}

func dieWithParent(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }

func children() []int { return nil }

// clock is the wall clock, the only clock that all processes share on every system. If it is set between a renewal and
// its message to the guard, the command is killed earlier or later by that amount.
func clock() time.Duration { return time.Duration(time.Now().UnixNano()) }

func self() (string, error) { return os.Executable() }
