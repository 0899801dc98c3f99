//go:build !linux && !darwin

package filelock

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"time"
)

// supported returns an error. On Windows, a file that somebody reads cannot be replaced. On other systems, it is not
// known which file systems are local, and which clock Go counts by.
func supported() error {
	return fmt.Errorf("not supported on %s: use Linux or macOS, or another backend", runtime.GOOS)
}

func open(string, int, fs.FileMode) (*os.File, error) { return nil, supported() }
func tryLock(*os.File) (bool, error)                  { return false, supported() }
func unlock(*os.File)                                 {}
func monotonic() (time.Duration, error)               { return 0, supported() }
func bootID() string                                  { return "" }
func owner(fs.FileInfo) int                           { return 0 }
func local(*os.File) error                            { return supported() }
func layered(*os.File) bool                           { return false }

var advice map[error]string
