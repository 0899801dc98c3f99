package filelock

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const monotonicClock = unix.CLOCK_MONOTONIC

// initialTimeNamespace is the one that a machine has from its start. Its number is the same on all machines.
const initialTimeNamespace = "time:[4026531834]"

var proc = "/proc" // but in tests

// bootID returns the id that the kernel has got at its start. It returns nothing if the processes with that id may have
// different clocks, or those with one clock different ids:
//
//   - In a time namespace, clocks have an offset. A kernel that shows none may be that of gVisor, where each container
//     has an id of its own.
//   - systemd-nspawn and LXC cover the file by another one, with an id for the container. Others cover it by the file
//     uuid beside it, which is another one each time.
func bootID() string {
	namespace, err := os.Readlink(proc + "/self/ns/time")
	if err != nil || namespace != initialTimeNamespace {
		return ""
	}
	path := proc + "/sys/kernel/random/boot_id"
	id := kernelsText(path)
	if kernelsText(path) != id {
		return ""
	}
	return id
}

// kernelsText returns the text of a file of the kernel, or nothing. Package os would take longer, to watch the file.
func kernelsText(path string) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var at unix.Statfs_t
	if err := unix.Fstatfs(fd, &at); err != nil || uint32(at.Type) != unix.PROC_SUPER_MAGIC {
		return ""
	}
	var text [64]byte
	n, err := unix.Read(fd, text[:])
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text[:n]))
}

// locals are the types of file systems of one machine. Others are refused, because it is not known whether another
// machine has the same files: its processes would not exclude those of this machine. FUSE is among the others, for it
// also stands for sshfs and virtiofs, and eCryptfs, which may lie over NFS. An overlay is not, although its layer for
// writing may be on another file system, or that of a container, which is shared with nobody; see Store.Examine.
var locals = map[uint32]bool{
	unix.EXT4_SUPER_MAGIC:      true, // and ext2 and ext3
	unix.XFS_SUPER_MAGIC:       true,
	unix.BTRFS_SUPER_MAGIC:     true,
	unix.F2FS_SUPER_MAGIC:      true,
	unix.REISERFS_SUPER_MAGIC:  true,
	unix.NILFS_SUPER_MAGIC:     true,
	unix.TMPFS_MAGIC:           true,
	unix.RAMFS_MAGIC:           true,
	unix.OVERLAYFS_SUPER_MAGIC: true,
	0x2fc12fc1:                 true, // ZFS
	0xca451a4e:                 true, // bcachefs
	0x3153464a:                 true, // JFS
	0x24051905:                 true, // UBIFS
}

// local returns an error if other machines may have the same files.
func local(dir *os.File) error {
	var at unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &at); err != nil {
		return &fs.PathError{Op: "fstatfs", Path: dir.Name(), Err: err}
	}
	if kind := uint32(at.Type); !locals[kind] {
		return fmt.Errorf("it is on a file system of type %#x, which other machines may share: give a directory on a local "+
			"disk, such as /var/lib/myapp", kind)
	}
	return nil
}

// layered reports whether the directory is on an overlay.
func layered(dir *os.File) bool {
	var at unix.Statfs_t
	return unix.Fstatfs(int(dir.Fd()), &at) == nil && uint32(at.Type) == unix.OVERLAYFS_SUPER_MAGIC
}
