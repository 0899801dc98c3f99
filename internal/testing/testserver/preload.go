package testserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// library is a small library in C, which tests preload into real servers. It is compiled when it is first needed.
type library struct {
	name   string
	source []byte

	once      sync.Once
	dir       string
	path, why string
}

// ready returns the path of the compiled library. why says why this machine cannot compile it, and is empty if it can.
func (l *library) ready() (path, why string) {
	l.once.Do(func() {
		if err := l.compile(); err != nil {
			l.why = err.Error()
		}
	})
	return l.path, l.why
}

func (l *library) compile() (err error) {
	parent := ""
	if strings.ContainsAny(os.TempDir(), " :") { // these characters separate the entries of LD_PRELOAD
		parent = "/tmp"
	}
	if l.dir, err = os.MkdirTemp(parent, l.name); err != nil {
		return err
	}
	if err := os.Chmod(l.dir, 0o755); err != nil { //nolint:gosec // servers may run as other users
		return err
	}
	l.path = filepath.Join(l.dir, l.name+".so")
	file := filepath.Join(l.dir, l.name+".c")
	if err := os.WriteFile(file, l.source, 0o600); err != nil {
		return err
	}
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-O1", "-o", l.path, file, "-ldl").CombinedOutput()
	if err != nil {
		return fmt.Errorf("gcc does not compile %s: %w %.200s", file, err, out)
	}
	return nil
}

// RemoveLibraries deletes what was compiled for clocks and disks. TestMain calls it at the end.
func RemoveLibraries() {
	for _, l := range []*library{clockshift, fulldisk} {
		_ = os.RemoveAll(l.dir)
	}
}
