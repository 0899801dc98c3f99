package elections

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// settling is how long a candidate needs at most, on a machine that is not busy, until the store can notify it, and
// healing how long after its connections have been cut, or after the server was restarted.
const settling, healing = 200 * time.Millisecond, time.Second

// judge is what the leaders work on. It knows the greatest term that has come, and refuses smaller ones. Leaders visit
// it about once per millisecond, over connections that have no faults.
type judge struct {
	mu   sync.Mutex
	now  leadership
	ends map[int]end // how terms of the candidates were ended, by candidate
	gaps map[kind][]time.Duration
	// waiting has the candidates that wait for the leader to go, since when.
	waiting map[int]time.Time
	terms   int
	visits  int
	late    int      // visits that were refused after the end of the lease: of a process that did not look in time
	wrong   []string // what must not happen
	changed chan struct{}
}

// leadership is the time of a leader, as the judge sees it.
type leadership struct {
	who    int
	term   uint64
	visits int
	last   time.Time
}

// end is what was done to a leader.
type end struct {
	kind kind
	term uint64
}

func newJudge() *judge {
	return &judge{
		gaps: map[kind][]time.Duration{}, ends: map[int]end{}, waiting: map[int]time.Time{}, changed: make(chan struct{}),
	}
}

// What candidates tell the judge.
const (
	visits  = "visit" // one piece of a leader's work
	waiting = "waits" // for the leader to go

	// After a visit that was refused: whether the lease was still valid, and if not, whether the context of the work
	// has ended soon.
	isValid, isLate, goesOn = "valid", "late", "goes-on"
)

// hear is what a candidate tells. It returns whether a visit is admitted.
func (j *judge) hear(what string, who int, term uint64) (admitted bool) {
	switch what {
	case visits:
		return j.visit(who, term)
	case waiting:
		j.waits(who, true)
	default:
		j.refused(what, who, term)
	}
	return true
}

// visit is one piece of a leader's work. It is refused if a greater term has come.
func (j *judge) visit(who int, term uint64) (admitted bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.visits++
	at := time.Now()
	switch {
	case term < j.now.term:
		return false
	case term == j.now.term && who != j.now.who:
		j.wrong = append(j.wrong, fmt.Sprintf("term %d of %d is also of %d", term, j.now.who, who))
	case term > j.now.term:
		if e, ok := j.ends[j.now.who]; ok && e.term == j.now.term {
			j.gaps[e.kind] = append(j.gaps[e.kind], at.Sub(j.now.last))
		}
		j.terms++
		j.now = leadership{who: who, term: term}
		delete(j.waiting, who)
	}
	j.now.visits++
	j.now.last = at
	j.change()
	return true
}

// refused is what a leader tells whose visit was refused.
func (j *judge) refused(what string, who int, term uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.late++
	if what == isLate {
		return
	}
	why := "although its lease was valid"
	if what == goesOn {
		why = "and goes on after the end of its lease"
	}
	j.wrong = append(j.wrong, fmt.Sprintf("%d was refused in term %d, %s: %d of %d came",
		who, term, why, j.now.term, j.now.who))
	j.change()
}

// change wakes those who wait for a change. Call with mu held.
func (j *judge) change() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// ending records what is about to be done to the leader.
func (j *judge) ending(r leadership, k kind) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ends[r.who] = end{k, r.term}
}

// hit records that something has happened to the leader, which goes on if it has survived that.
func (j *judge) hit(k kind) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ends[j.now.who] = end{k, j.now.term}
}

// await waits until somebody leads in a term after the given one, and has worked.
func (j *judge) await(t *testing.T, after uint64) (now leadership) {
	t.Helper()
	j.until(t, fmt.Sprintf("somebody leads after term %d", after), func() bool {
		now = j.now
		return now.term > after && now.visits >= 3
	})
	return now
}

// disturbed records that connections were cut or a server was restarted, so that nobody can be notified for a while.
func (j *judge) disturbed() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for who := range j.waiting {
		j.waiting[who] = time.Now().Add(healing - settling)
	}
}

// awaitAnother waits until a candidate has waited for some time for the leader to go. Candidates that have had short
// terms pause before they campaign again, and if all did, nobody would lead meanwhile. One that has just begun to wait
// has no subscription yet.
func (j *judge) awaitAnother(t *testing.T) {
	t.Helper()
	var since time.Time
	j.until(t, "another candidate waits", func() bool {
		for _, began := range j.waiting {
			if since.IsZero() || began.Before(since) {
				since = began
			}
		}
		return !since.IsZero()
	})
	<-time.After(time.Until(since.Add(settling)))
}

// until waits until what holds, which is called with the mutex.
func (j *judge) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	limit := time.After(hangLimit)
	for {
		j.mu.Lock()
		done, changed := holds(), j.changed
		j.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("not within %v: %s", hangLimit, what)
		}
	}
}

// waits records that a candidate waits for the leader to go, or that a new one takes its place, which does not yet.
func (j *judge) waits(who int, yes bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.waiting, who)
	if yes {
		j.waiting[who] = time.Now()
	}
	j.change()
}

// awaitCampaign waits until a new candidate takes part.
func (j *judge) awaitCampaign(t *testing.T, who int) {
	t.Helper()
	j.until(t, fmt.Sprintf("candidate %d takes part", who), func() bool {
		return !j.waiting[who].IsZero() || j.now.who == who && j.now.term > j.ends[who].term
	})
}

// serve answers a candidate in another process.
func (j *judge) serve(conn net.Conn) {
	for in := bufio.NewReader(conn); ; {
		var what string
		var who int
		var term uint64
		if _, err := fmt.Fscanln(in, &what, &who, &term); err != nil {
			return
		}
		if _, err := fmt.Fprintln(conn, j.hear(what, who, term)); err != nil {
			return
		}
	}
}

// quantile returns the part q of sorted durations.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
