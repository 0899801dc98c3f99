//go:build linux || darwin

package file

var (
	Advised = advised
	TryLock = tryLock
	Unlock  = unlock
)
