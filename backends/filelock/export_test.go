//go:build linux || darwin

package filelock

var (
	Advised = advised
	TryLock = tryLock
	Unlock  = unlock
)
