package filelock

import (
	"bytes"
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// notify returns a file from which come the changes of a directory: files that were put into their places, or removed.
func notify(dir string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO|unix.IN_DELETE|unix.IN_ONLYDIR); err != nil {
		_ = f.Close()
		return nil, os.NewSyscallError("inotify_add_watch", err)
	}
	return f, nil
}

// changes returns the names of the files that have changed. all says that others may have, because the kernel had no
// room for more, or watches no more.
func changes(text []byte) (names []string, all bool) {
	for len(text) >= unix.SizeofInotifyEvent { // wd, mask, cookie and len, and the name with zeros behind it
		mask, length := binary.NativeEndian.Uint32(text[4:]), int(binary.NativeEndian.Uint32(text[12:]))
		text = text[unix.SizeofInotifyEvent:]
		if mask&(unix.IN_Q_OVERFLOW|unix.IN_IGNORED) != 0 {
			all = true
		}
		length = min(length, len(text))
		if name := bytes.TrimRight(text[:length], "\x00"); len(name) > 0 {
			names = append(names, string(name))
		}
		text = text[length:]
	}
	return names, all
}
