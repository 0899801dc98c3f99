package soak

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// What a process tells the judge. Times are those of the machine's clock, which all processes share.
const (
	calls    = "calls"    // it calls a method, which has an end
	returns  = "returns"  // the method has returned
	has      = "has"      // it has a lease, with its token; the call began at a time
	relies   = "relies"   // it relied on the lease at this time
	verified = "verified" // a Verify that began at this time succeeded
)

// word is a line of a process.
type word struct {
	What  string
	Key   string
	Lease string // unique in the trial, as the name of a call is
	Owner string // of the grant that the lease is of; empty if it is of LockAll
	Fence uint64
	Began int64
	At    int64
}

// span is a lease as its holder saw it.
type span struct {
	word              // has
	last        int64 // when its holder last relied on it; 0: never
	certificate int64 // the start of its last successful Verify; 0: none
}

// call is one that has not returned.
type call struct {
	name string
	who  int
	at   time.Time
}

// judge collects what the processes say.
type judge struct {
	mu    sync.Mutex
	spans map[string]*span // by lease
	open  map[string]call  // by name
	wrong []string
}

func newJudge() *judge { return &judge{spans: map[string]*span{}, open: map[string]call{}} }

func (j *judge) hear(who int, w word) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch w.What {
	case calls:
		j.open[w.Lease] = call{w.Key, who, time.Now()}
	case returns:
		delete(j.open, w.Lease)
	case has:
		j.spans[w.Lease+w.Key] = &span{word: w}
	case relies:
		j.spans[w.Lease+w.Key].last = w.At
	case verified:
		j.spans[w.Lease+w.Key].certificate = w.At
	}
}

// dies forgets the calls of a process that was killed.
func (j *judge) dies(who int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	maps.DeleteFunc(j.open, func(_ string, c call) bool { return c.who == who })
}

// overdue reports calls that take longer than any call may, each once.
func (j *judge) overdue(bound time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, c := range j.open {
		if took := time.Since(c.at); took > bound {
			j.wrong = append(j.wrong, fmt.Sprintf("%s of process %d has not returned within %v", c.name, c.who, took))
			delete(j.open, id)
		}
	}
}

// verdict returns what must not have happened.
func (j *judge) verdict() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	byKey := map[string][]*span{}
	for _, s := range j.spans {
		byKey[s.Key] = append(byKey[s.Key], s)
	}
	wrong := j.wrong
	for key, spans := range byKey {
		for _, broken := range slices.Concat(overlaps(spans), tokens(spans)) {
			wrong = append(wrong, key+": "+broken)
		}
	}
	return wrong
}

// overlaps finds leases on which two relied at once, and certificates that were wrong: nobody may have got the lock
// with a greater token before a Verify that succeeds began. spans are those of one key.
func overlaps(spans []*span) (wrong []string) {
	slices.SortFunc(spans, func(a, b *span) int { return int(a.At - b.At) })
	var longest, sure *span // those before with the latest time of each kind
	for _, s := range spans {
		if longest != nil && s.At < longest.last {
			wrong = append(wrong, fmt.Sprintf("%v was there at %d, and %v was relied on until %d", s.word, s.At, longest.word,
				longest.last))
		}
		if sure != nil && s.At < sure.certificate && s.Fence > sure.Fence {
			wrong = append(wrong, fmt.Sprintf("%v was there at %d, and %v was verified at %d", s.word, s.At, sure.word,
				sure.certificate))
		}
		if longest == nil || s.last > longest.last {
			longest = s
		}
		if sure == nil || s.certificate > sure.certificate {
			sure = s
		}
	}
	return wrong
}

// handed counts the leases that came from another caller of their process.
func (j *judge) handed() (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	owners := map[string]bool{}
	for _, s := range j.spans {
		if owners[s.Owner] && s.Owner != "" {
			n++
		}
		owners[s.Owner] = true
	}
	return n
}

// tokens finds tokens that repeat, and one that is not greater than that of a lease which somebody had before the call
// began, or relied on before somebody relied on this one. spans are those of one key.
func tokens(spans []*span) (wrong []string) {
	began := slices.SortedFunc(slices.Values(spans), func(a, b *span) int { return int(a.Began - b.Began) })
	slices.SortFunc(spans, func(a, b *span) int { return int(a.At - b.At) })
	var holder *span
	for _, s := range spans {
		switch {
		case s.last == 0: // its time may have been over when it came
		case holder != nil && s.Fence <= holder.Fence:
			wrong = append(wrong, fmt.Sprintf("%v was relied on after %v, and its token is not greater", s.word, holder.word))
		default:
			holder = s
		}
	}
	seen := map[uint64]*span{}
	var greatest *span
	had := 0
	for _, s := range began {
		for ; had < len(spans) && spans[had].At < s.Began; had++ {
			if greatest == nil || spans[had].Fence > greatest.Fence {
				greatest = spans[had]
			}
		}
		if greatest != nil && s.Fence <= greatest.Fence {
			wrong = append(wrong, fmt.Sprintf("the token of %v is not greater than that of %v", s.word, greatest.word))
		}
		if other := seen[s.Fence]; other != nil {
			wrong = append(wrong, fmt.Sprintf("%v and %v have one token", s.word, other.word))
		}
		seen[s.Fence] = s
	}
	return wrong
}
