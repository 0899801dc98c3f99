package script

import (
	"strings"

	"github.com/golocker/locker/drivers"
)

// Native is a command with which a server compares the value of a key and deletes it. It releases a lock that nobody
// waits for without a script, which costs the server less. A server knows at most one of them.
type Native uint8

// The natives.
const (
	NoNative Native = iota
	DelEx           // Redis 8.4
	DelIfEq         // Valkey 9
)

// Release returns u as a command of a server that knows n. Its reply is 1 if the lock was deleted, and 0 if the case is
// not the usual one. It returns false if only a script can do that: u is no release, or it is also for other counters.
func (n Native) Release(u *Usual) (Command, bool) {
	if n == NoNative || !u.IsRelease() || strings.HasPrefix(u.Text, anyCounter) {
		return Command{}, false
	}
	return n.delete(u.Lock, u.Text), true
}

// Probe returns a command that does nothing to the lock of u, a release, whoever has it. Only this library knows the
// owner's token, and it marks a value once at most. An empty value would not do, because another library's lock may
// have it. A server that knows n answers 0, or that the key is no string.
func (n Native) Probe(u *Usual) Command { return n.delete(u.Lock, u.Text+"++") }

func (n Native) delete(lock, value string) Command {
	if n == DelEx {
		return Command{Words: drivers.Command{"DELEX", lock, "IFEQ", value}}
	}
	return Command{Words: drivers.Command{"DELIFEQ", lock, value}}
}
