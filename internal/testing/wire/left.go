package wire

import (
	"regexp"
	"slices"
	"strings"
)

var (
	counters = regexp.MustCompile(`^\{\d+\}\}.*(fence|guard)$`) // and the markers of the restart guard
	waits    = regexp.MustCompile(`:lockwait(:[ts])?$`)
	derived  = regexp.MustCompile(`:lock(wait|queue|turn|entries)(:[ts])?$`)
)

// IsLock reports whether key is that of a lock, and not of something that belongs to locks.
func IsLock(key string) bool { return !counters.MatchString(key) && !derived.MatchString(key) }

// Left returns those of a server's keys that must be gone when nobody has a lock or waits for one. It leaves out
// counters, and hashes with tombstones only. fields returns the names of a hash's fields.
func Left(keys []string, fields func(key string) []string) (left []string) {
	for _, key := range keys {
		isTomb := waits.MatchString(key) && !slices.ContainsFunc(fields(key), isWaiter)
		if !counters.MatchString(key) && !isTomb {
			left = append(left, key)
		}
	}
	return left
}

// Tombstones counts the tombstones on a server. Some of them may be over.
func Tombstones(keys []string, fields func(key string) []string) (n int) {
	for _, key := range keys {
		if !waits.MatchString(key) {
			continue
		}
		for _, field := range fields(key) {
			if !isWaiter(field) {
				n++
			}
		}
	}
	return n
}

func isWaiter(field string) bool { return !strings.HasPrefix(field, "!") }
