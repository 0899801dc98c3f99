package filelock

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// monotonicClock is mach_absolute_time.
const monotonicClock = unix.CLOCK_UPTIME_RAW

// bootID returns the id that the kernel has got at its start.
func bootID() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id
}

// local returns an error if other machines may have the same files.
func local(dir *os.File) error {
	var at unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &at); err != nil {
		return &fs.PathError{Op: "fstatfs", Path: dir.Name(), Err: err}
	}
	if at.Flags&unix.MNT_LOCAL == 0 {
		return errors.New("it is on a file system that other machines may share: give a directory on a local disk")
	}
	return nil
}

func layered(*os.File) bool { return false }
