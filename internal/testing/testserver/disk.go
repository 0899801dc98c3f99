package testserver

import (
	_ "embed"
	"os"
	"path/filepath"
)

//go:embed testdata/fulldisk.c
var fulldiskSource []byte

var fulldisk = &library{name: "fulldisk", source: fulldiskSource}

// NoDisk says why this machine cannot fill the disks of servers. It is empty if the machine can.
func NoDisk() string {
	_, why := fulldisk.ready()
	return why
}

// Disk is what one server writes to. It has room until it is filled.
type Disk struct{ file string }

// NewDisk returns a disk that can be filled, with its file in dir, and what the environment of the server has to have.
// The server must be able to read files in dir.
func NewDisk(dir string) (d *Disk, env []string) {
	path, _ := fulldisk.ready()
	d = &Disk{filepath.Join(dir, "full")}
	return d, []string{"LD_PRELOAD=" + path, "FULLDISK=" + d.file}
}

// Fill lets files below a directory grow no more. Where a file has been written before, it can be written again.
func (d *Disk) Fill(directory string) error {
	return os.WriteFile(d.file, []byte(directory), 0o644) //nolint:gosec // servers may run as other users
}

// Free makes room again.
func (d *Disk) Free() error { return os.Remove(d.file) }
