// Package disk fills the disk of a real server, for tests. It preloads a library into the server, which needs a C
// compiler.
package disk

import (
	_ "embed"
	"os"
	"path/filepath"

	"github.com/golocker/locker/internal/testing/preload"
)

//go:embed testdata/fulldisk.c
var source []byte

var shim = preload.New("fulldisk", source)

// Missing says why this machine cannot fill the disks of servers. It is empty if the machine can.
func Missing() string {
	_, why := shim.Path()
	return why
}

// Remove deletes the compiled library. TestMain calls it at the end.
func Remove() { shim.Remove() }

// Disk is what one server writes to. It has room until it is filled.
type Disk struct{ file string }

// New returns a disk that can be filled, with its file in dir, and what the environment of the server has to have. The
// server must be able to read files in dir.
func New(dir string) (d *Disk, env []string) {
	path, _ := shim.Path()
	d = &Disk{filepath.Join(dir, "full")}
	return d, []string{"LD_PRELOAD=" + path, "FULLDISK=" + d.file}
}

// Fill lets files below a directory grow no more. Where a file has been written before, it can be written again.
func (d *Disk) Fill(directory string) error {
	return os.WriteFile(d.file, []byte(directory), 0o644) //nolint:gosec // servers may run as other users
}

// Free makes room again.
func (d *Disk) Free() error { return os.Remove(d.file) }
