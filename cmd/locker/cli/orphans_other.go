//go:build unix && !linux

package cli

import (
	"os"
	"syscall"
	"time"
)

// tracksOrphans: who leaves the command's process group is out of reach.
const tracksOrphans = false

func adoptOrphans() {}

func dieWithParent(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }

func children() []int { return nil }

// clock is the wall clock, the only one that all processes share on every system. A step of it between a renewal and its
// report moves the moment at which the command is killed.
func clock() time.Duration { return time.Duration(time.Now().UnixNano()) }

func self() (string, error) { return os.Executable() }
