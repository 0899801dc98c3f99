//go:build linux || darwin

package filelock

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func supported() error { return nil }

// open opens a file. It follows no symbolic link, and does not wait for the other end of a pipe.
func open(path string, flags int, mode fs.FileMode) (*os.File, error) {
	return os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, mode)
}

// advice says what to do about errors.
var advice = map[error]string{
	fs.ErrPermission: "let this user read and write in the directory, or give another one",
	fs.ErrNotExist:   "make the directory again, and restart the program",
	unix.EROFS:       "give a directory on a file system that can be written",
	unix.ENOSPC:      "make room on the disk",
	unix.EDQUOT:      "raise the quota of this user",
	unix.EMFILE:      "raise the limit of open files (ulimit -n)",
	unix.ENFILE:      "raise the limit of open files of this machine (fs.file-max)",
}

// owner returns the user id of the owner of a file.
func owner(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

// tryLock locks a file if nobody else has. The lock belongs to what this call of open has opened, so that it also keeps
// other goroutines out.
func tryLock(f *os.File) (bool, error) {
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}

// unlock unlocks a file and closes it. Closing alone is not enough: a process that is just being started has a copy
// until it runs its program, and the kernel would wait for that one, too.
func unlock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	_ = f.Close()
}

// monotonic returns the time of the clock by which package time counts monotonic time. It stands still while the
// machine is suspended, as that of each holder does. A clock that goes on would let others in who wake up first.
func monotonic() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(monotonicClock, &now)
	return time.Duration(now.Nano()), err
}
