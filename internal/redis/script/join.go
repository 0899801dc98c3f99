package script

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
)

// MaxJoined is the largest number of commands that [Join] takes. With 64 a command costs the server as much, and keeps
// it from its other clients for twice as long; see server-cpu in benchmarks.
const MaxJoined = 32

// Usual is what a Command does in the usual case: it acquires a lock that is free, or releases one that nobody waits
// for. [Join] does that for many commands at once.
type Usual struct {
	Lock string // the key
	// Text is the value of the lock. For an acquisition it is without the counter. A release is also for a value with a
	// smaller counter.
	Text string

	// These are for acquisitions. Fence is empty for a release.
	Wait, Fence string // the keys of the hash and of the counter
	TTL         time.Duration
	Quantum     int64  // in µs: the clock is rounded down to a multiple of it
	Guard       *Guard // nil: none

	// Alone returns the command that is sent by itself if the case is not the usual one. It is made only then.
	Alone func() Command
}

// IsRelease reports whether u is a release, and not an acquisition.
func (u *Usual) IsRelease() bool { return u.Fence == "" }

// Slot returns the hash slot of u. Behind a Redis Cluster, only commands of one slot can be joined.
func (u *Usual) Slot() uint16 { return Slot(u.Lock) }

// Join returns the usual cases of at most MaxJoined commands as one command. Acquisitions come before releases, and
// have the same quantum and guard. [ReadJoined] reads the reply.
func Join(usual []*Usual) Command {
	a := 0
	for a < len(usual) && !usual[a].IsRelease() {
		a++
	}
	acquisitions, releases := usual[:a], usual[a:]
	var guard *Guard
	quantum := int64(1)
	if a > 0 {
		quantum, guard = usual[0].Quantum, usual[0].Guard
	}
	source, sha := manyScript.of(guard).text()
	keys := 3*a + len(releases)
	if guard != nil {
		keys++
	}
	words := make(drivers.Command, 0, 7+5*a+2*len(releases))
	words = append(words, "EVALSHA", sha, strconv.Itoa(keys))
	for _, u := range acquisitions {
		words = append(words, u.Lock)
	}
	for _, u := range acquisitions {
		words = append(words, u.Wait)
	}
	for _, u := range acquisitions {
		words = append(words, u.Fence)
	}
	if guard != nil {
		words = append(words, guard.of(usual[0].Lock))
	}
	for _, u := range releases {
		words = append(words, u.Lock)
	}
	words = append(words, strconv.Itoa(a), strconv.FormatInt(quantum, 10))
	for _, u := range acquisitions {
		words = append(words, milliseconds(u.TTL))
	}
	for _, u := range acquisitions {
		words = append(words, u.Text)
	}
	if guard != nil {
		words = append(words, guard.rest)
	}
	for _, u := range releases {
		words = append(words, u.Text)
	}
	return Command{Words: words, Source: source}
}

// ReadJoined reads the reply to a joined command. It returns one number for each of the n commands, in their order. The
// number of an acquisition is the counter with which the lock was granted, and that of a release is 1. It is 0 if the
// case was not the usual one. Then the lock is as it was, and the command has to be sent by itself. If the server has
// refused the joined command, the error is a drivers.ServerError.
func ReadJoined(reply drivers.Reply, n int) (_ []int64, err error) {
	var numbers []int64
	if number, alone := reply.(int64); alone {
		numbers = []int64{number}
	} else if numbers, err = integers(reply); err != nil {
		return nil, err
	}
	if len(numbers) != n || slices.Min(numbers) < 0 {
		return nil, fmt.Errorf("the server returned %d for %d joined commands", numbers, n)
	}
	return numbers, nil
}

// IsForMany reports whether a server may have refused a command only because it is about several locks. Nothing was
// executed then, and a command for each lock can succeed, or gets a better answer. Other refusals, such as LOADING,
// would be the same for each of them.
func IsForMany(e drivers.ServerError) bool {
	switch e.Code() {
	case "CROSSSLOT": // one server of a cluster, behind a driver that does not say so
		return true
	case "TRYAGAIN": // a slot migrates, and the keys of some of the locks are in two places
		return true
	case "NOPERM": // for one of the keys: the server looks at all of them before it executes anything
		return true
	default: // a client that has not authenticated may not send that many words; a shorter command is answered NOAUTH
		return strings.HasPrefix(e.Error(), "ERR Protocol error")
	}
}
