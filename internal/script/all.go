package script

import (
	"time"

	"github.com/golocker/locker/drivers"
)

// MaxAll is the largest number of locks that [AcquireAll] takes. It keeps the server from its other clients for less
// than a millisecond.
const MaxAll = 64

// AcquireAll takes the locks of several attempts, which have different locks and the same Guard: all of them, if all
// are free and nobody waits for any, and none otherwise. [ReadAll] reads the reply.
func AcquireAll(attempts []Attempt, ttl time.Duration) Command {
	guard := attempts[0].Guard
	keys := make([]string, 0, 3*len(attempts)+1)
	for _, a := range attempts {
		keys = append(keys, a.Lock)
	}
	for _, a := range attempts {
		keys = append(keys, a.Wait())
	}
	for _, a := range attempts {
		keys = append(keys, a.Fence())
	}
	args := make([]string, 0, 1+len(attempts))
	args = append(args, milliseconds(ttl)+guard.number())
	for _, a := range attempts {
		args = append(args, a.text())
	}
	if guard != nil {
		keys = append(keys, guard.of(attempts[0].Lock))
	}
	return allScript.of(guard).call(keys, args...).granting(func(reply drivers.Reply) bool {
		all, _ := ReadAll(reply, len(attempts))
		return all.Status == Granted
	})
}

// All is the reply to AcquireAll.
type All struct {
	// Status is Granted, or Waiting if another owner has a lock. It is Gone if this attempt was executed before and has
	// lost some of the locks since, and Unread if only an attempt for each single lock can tell.
	Status   Status
	Counters []uint64      // Granted: the tokens
	Index    int           // Waiting: of the lock
	Left     time.Duration // Waiting: the remaining time of the lock
	Label    string        // Waiting: the owner's label
}

// ReadAll reads the reply to AcquireAll with n attempts.
func ReadAll(reply drivers.Reply, n int) (All, error) {
	switch reply {
	case int64(0):
		return All{}, nil
	case int64(-1):
		return All{Status: Gone}, nil
	}
	numbers, label, err := labelled(reply)
	if err != nil {
		return All{}, err
	}
	if len(numbers) == 3 && numbers[0] == 0 && 0 < numbers[1] && numbers[1] <= int64(n) {
		return All{Status: Waiting, Index: int(numbers[1] - 1), Left: span(numbers[2]), Label: label}, nil
	}
	if len(numbers) != n {
		return All{}, unexpected(reply)
	}
	all := All{Status: Granted}
	for _, c := range numbers {
		if c <= 0 {
			return All{}, unexpected(reply)
		}
		all.Counters = append(all.Counters, uint64(c))
	}
	return all, nil
}
