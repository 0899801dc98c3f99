package script

import (
	"fmt"
	"strconv"
	"time"

	"github.com/golocker/locker/drivers"
)

// MaxJoined is the largest number of commands that [Join] takes. A larger command would save nothing more, and would
// keep the server from its other clients for longer.
const MaxJoined = 64

// Usual is what a Command does in the usual case: it acquires a lock that is free, or releases one that nobody waits
// for. [Join] does that for many commands at once.
type Usual struct {
	lock string
	// text is the value of the lock, for an acquisition without the counter.
	text string

	// Acquisitions only.
	wait, fence  string
	ttl, quantum string // in ms and µs
}

func usualAcquisition(lock, wait, fence, text string, ttl time.Duration, quantum int64) *Usual {
	return &Usual{
		lock: lock, text: text, wait: wait, fence: fence,
		ttl: milliseconds(ttl), quantum: strconv.FormatInt(quantum, 10),
	}
}

// usualRelease returns the release of a lock that has value, or value with a smaller counter.
func usualRelease(lock, value string) *Usual { return &Usual{lock: lock, text: value} }

// Slot returns the hash slot of u. Behind a Redis Cluster, only commands of one slot can be joined.
func (u *Usual) Slot() uint16 { return Slot(u.lock) }

// Join returns the usual cases of at most MaxJoined commands as one command. Acquisitions come before releases, and
// have the same quantum. [ReadJoined] reads the reply.
func Join(usual []*Usual) Command {
	a := 0
	for a < len(usual) && usual[a].fence != "" {
		a++
	}
	acquisitions, releases := usual[:a], usual[a:]
	words := make(drivers.Command, 0, 5+5*a+2*len(releases))
	words = append(words, "EVALSHA", manyScript.sha, strconv.Itoa(3*a+len(releases)))
	for _, u := range acquisitions {
		words = append(words, u.lock)
	}
	for _, u := range acquisitions {
		words = append(words, u.wait)
	}
	for _, u := range acquisitions {
		words = append(words, u.fence)
	}
	for _, u := range releases {
		words = append(words, u.lock)
	}
	quantum := "1"
	if a > 0 {
		quantum = usual[0].quantum
	}
	words = append(words, strconv.Itoa(a), quantum)
	for _, u := range acquisitions {
		words = append(words, u.ttl)
	}
	for _, u := range acquisitions {
		words = append(words, u.text)
	}
	for _, u := range releases {
		words = append(words, u.text)
	}
	return Command{Words: words, Source: manyScript.source}
}

// ReadJoined reads the reply to a joined command. It returns one number for each of the n commands, in their order. The
// number of an acquisition is the counter with which the lock was granted, and that of a release is 1. It is 0 if the
// case was not the usual one. Then the lock is as it was, and the command has to be sent by itself. If the server has
// refused the joined command, the error is a drivers.ServerError.
func ReadJoined(reply drivers.Reply, n int) ([]int64, error) {
	numbers, err := integers(reply)
	if err != nil {
		return nil, err
	}
	if len(numbers) != n {
		return nil, fmt.Errorf("the server returned %d numbers for %d joined commands", len(numbers), n)
	}
	return numbers, nil
}
