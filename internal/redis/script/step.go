package script

import (
	"strconv"
	"time"

	"github.com/golocker/locker/drivers"
)

// MaxStep is the largest number of locks of a [Step]. It keeps the server from its other clients for less than a
// millisecond.
const MaxStep = 64

// Step takes some of several locks at once: the first ones that are free and that nobody waits for, as many as are
// wanted, or none.
type Step struct {
	Attempts []Attempt // of different locks, with the same Guard
	Want     int       // how many of the locks; at least 1
	Gates    []Keys    // of other locks: if somebody holds or waits for one of them, nothing is taken
	Spare    int       // if more than 0, and that many locks are free beside those that are wanted, gates do not count
	TTL      time.Duration
}

// Command returns the step as a command. [Step.Read] reads the reply.
func (s Step) Command() Command {
	guard := s.Attempts[0].Guard
	keys := make([]string, 0, 3*len(s.Attempts)+2*len(s.Gates)+1)
	for _, a := range s.Attempts {
		keys = append(keys, a.Lock)
	}
	for _, g := range s.Gates {
		keys = append(keys, g.Lock)
	}
	for _, a := range s.Attempts {
		keys = append(keys, a.Wait())
	}
	for _, g := range s.Gates {
		keys = append(keys, g.Wait())
	}
	for _, a := range s.Attempts {
		keys = append(keys, a.Fence())
	}
	args := make([]string, 0, 2+len(s.Attempts))
	args = append(args, milliseconds(s.TTL)+guard.number(), strconv.Itoa(s.Want)+s.spare())
	for _, a := range s.Attempts {
		args = append(args, a.text())
	}
	if guard != nil {
		keys = append(keys, guard.of(s.Attempts[0].Lock))
	}
	return stepScript.of(guard).call(keys, args...).granting(func(reply drivers.Reply) bool {
		taken, _ := s.Read(reply)
		return taken.Status == Granted
	})
}

func (s Step) spare() string {
	if s.Spare == 0 {
		return ""
	}
	return ":" + strconv.Itoa(s.Spare)
}

// InOneSlot reports whether all locks of s share a hash slot.
func (s Step) InOneSlot() bool {
	slot := Slot(s.Attempts[0].Lock)
	for _, a := range s.Attempts {
		if Slot(a.Lock) != slot {
			return false
		}
	}
	for _, g := range s.Gates {
		if Slot(g.Lock) != slot {
			return false
		}
	}
	return true
}

// Taken is the reply to a Step.
type Taken struct {
	// Status is Granted, or Waiting if another owner has too many of the locks, or somebody has or awaits a gate. It is
	// Gone if this attempt was executed before and has lost some of the locks since, and Unread if only an attempt for
	// each single lock can tell.
	Status   Status
	Counters []uint64      // Granted: the tokens, and 0 for the locks that were not taken
	Index    int           // Waiting: of the lock; gates come after the locks of the attempts
	Left     time.Duration // Waiting: the remaining time of the lock; 0: not known
	Label    string        // Waiting: the owner's label
}

// Read reads the reply to the command of s.
func (s Step) Read(reply drivers.Reply) (Taken, error) {
	switch reply {
	case int64(0):
		return Taken{}, nil
	case int64(-1):
		return Taken{Status: Gone}, nil
	}
	numbers, label, err := labelled(reply)
	if err != nil {
		return Taken{}, err
	}
	if last := int64(len(s.Attempts) + len(s.Gates)); len(numbers) == 3 && numbers[0] == 0 && 0 < numbers[1] &&
		numbers[1] <= last {
		return Taken{Status: Waiting, Index: int(numbers[1] - 1), Left: span(numbers[2]), Label: label}, nil
	}
	taken := Taken{Status: Granted, Counters: make([]uint64, len(s.Attempts))}
	granted := 0
	for i, c := range numbers {
		if c > 0 && i < len(s.Attempts) {
			taken.Counters[i] = uint64(c)
			granted++
		}
	}
	if len(numbers) != len(s.Attempts) || granted != s.Want {
		return Taken{}, unexpected(reply)
	}
	return taken, nil
}
