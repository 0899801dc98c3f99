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
	waits    = "waits"    // it waits for others to go
	goesOn   = "goes on"  // the work of a leader has not ended although the lease has
)

// kind says which kind of lock a lease is for.
type kind string

const (
	lock        kind = "lock"
	permit      kind = "permit" // or several
	shared      kind = "shared"
	upgradeable kind = "upgradeable"
	exclusive   kind = "exclusive"
)

// excludes reports whether a lease of kind k has no lease of the other kind beside it. Locks, and permits with the same
// number, exclude each other.
func (k kind) excludes(other kind) bool {
	return !k.reads() || !other.reads() || k == upgradeable && other == upgradeable
}

// reads reports whether a lease of kind k is one of a reader. Tokens of readers are in no order among themselves.
func (k kind) reads() bool { return k == shared || k == upgradeable }

// word is a line of a process.
type word struct {
	What   string
	Kind   kind `json:",omitempty"`
	Key    string
	Lease  string // unique in the trial, as the name of a call is
	From   string `json:",omitempty"` // the lease that Upgrade or Downgrade has made it of
	Owner  string `json:",omitempty"` // of the grant that the lease is of; empty if it is of several locks
	Fence  uint64 `json:",omitempty"`
	Slots  []int  `json:",omitempty"` // the numbers of permits
	Limit  int    `json:",omitempty"` // how many permits there are, as the program says
	Weight int    `json:",omitempty"` // how many permits the program has asked for
	Text   string `json:",omitempty"` // of which the lease was resumed
	Began  int64  `json:",omitempty"`
	At     int64  `json:",omitempty"`
}

// span is a lease as its holder saw it.
type span struct {
	word              // has
	who         int   // the process
	last        int64 // when its holder last relied on it; 0: never
	times       int   // how often it did
	certificate int64 // the start of its last successful Verify; 0: none
}

// changed reports whether Upgrade or Downgrade has made it of another lease.
func (s *span) changed() bool { return s.From != "" }

// upgraded reports whether Upgrade has made it of another lease.
func (s *span) upgraded() bool { return s.changed() && s.Kind == exclusive }

// downgraded reports whether Downgrade has made it of another lease.
func (s *span) downgraded() bool { return s.changed() && s.Kind == shared }

// call is one that has not returned.
type call struct {
	name string
	who  int
	at   time.Time
}

// bound is the largest number of permits that may be held at once, from a time on.
type bound struct {
	from int64
	n    int
}

// judge collects what the processes say.
type judge struct {
	mu     sync.Mutex
	spans  map[string]*span   // by lease
	bounds map[string][]bound // of permits, by key
	texts  map[string]*span   // that was resumed of a text last, by text
	open   map[string]call    // by name
	newest map[string]*span   // the lease with the greatest token that was relied on, by key
	// waiting has the processes that wait for others to go, since when.
	waiting map[int]time.Time
	listed  []listing
	wrong   []string
}

// listing is a list of locks that is complete.
type listing struct {
	began, ended int64
	keys         map[string]bool
}

func newJudge() *judge {
	return &judge{
		spans: map[string]*span{}, bounds: map[string][]bound{}, texts: map[string]*span{}, open: map[string]call{},
		newest: map[string]*span{}, waiting: map[int]time.Time{},
	}
}

func (j *judge) hear(who int, w word) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch w.What {
	case calls:
		j.open[w.Lease] = call{w.Key, who, time.Now()}
	case returns:
		delete(j.open, w.Lease)
	case has:
		if other := j.texts[w.Text]; other != nil && w.Text != "" {
			j.wrong = append(j.wrong, fmt.Sprintf("%v and %v are of one text", w, other.word))
		}
		j.spans[w.Lease+w.Key] = &span{word: w, who: who}
		j.texts[w.Text] = j.spans[w.Lease+w.Key]
		delete(j.waiting, who)
	case relies:
		s := j.spans[w.Lease+w.Key]
		s.last, s.times = w.At, s.times+1
		if other := j.newest[w.Key]; other == nil || s.Fence > other.Fence {
			j.newest[w.Key] = s
		}
	case verified:
		j.spans[w.Lease+w.Key].certificate = w.At
	case waits:
		j.waiting[who] = time.Now()
	case goesOn:
		j.wrong = append(j.wrong, fmt.Sprintf("process %d goes on to lead after the end of %s", who, w.Lease))
	}
}

// dies forgets the calls of a process that was killed.
func (j *judge) dies(who int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	maps.DeleteFunc(j.open, func(_ string, c call) bool { return c.who == who })
}

// permits says how many permits of key may be held at once from now on.
func (j *judge) permits(key string, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.bounds[key] = append(j.bounds[key], bound{now(), n})
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

// found reports whether a call has not returned.
func (j *judge) found() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.wrong) > 0
}

// count returns how many leases there were of which is says so.
func (j *judge) count(is func(s *span) bool) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.spans {
		if is(s) {
			n++
		}
	}
	return n
}

// passed counts the leases that were resumed of a text and relied on.
func (j *judge) passed() int {
	return j.count(func(s *span) bool { return s.Text != "" && s.last > 0 })
}

// cycles counts upgradeable leases that have become exclusive and then shared ones, of which each was relied on.
func (j *judge) cycles() int {
	return j.count(func(s *span) bool {
		before := j.spans[s.From+s.Key]
		return s.downgraded() && s.last > 0 && before != nil && before.upgraded() && before.last > 0
	})
}

// lists says which locks were listed.
func (j *judge) lists(l listing) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.listed = append(j.listed, l)
}

// missing finds locks that somebody relied on before a listing and after it, and that are not in it.
func (j *judge) missing() (wrong []string) {
	for _, l := range j.listed {
		for _, s := range j.spans {
			if s.Kind == lock && s.At <= l.began && s.last >= l.ended && !l.keys[s.Key] {
				wrong = append(wrong, fmt.Sprintf("a list of %d to %d lacks %v, relied on until %d", l.began, l.ended, s.word,
					s.last))
			}
		}
	}
	return wrong
}

// verdict returns what must not have happened.
func (j *judge) verdict() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	wrong := slices.Concat(j.wrong, j.missing())
	for key, spans := range j.byKey() {
		var broken []string
		if spans[0].Kind == permit {
			broken = permits(spans, j.bounds[key])
		} else {
			broken = slices.Concat(overlaps(spans), tokens(spans), gaps(spans))
		}
		for _, broken := range broken {
			wrong = append(wrong, key+": "+broken)
		}
	}
	return wrong
}

// most returns how many permits, or other leases, were relied on at once at most, by key.
func (j *judge) most() map[string]int {
	j.mu.Lock()
	defer j.mu.Unlock()
	most := map[string]int{}
	for key, spans := range j.byKey() {
		most[key], _ = crowd(spans, nil)
	}
	return most
}

// byKey returns the leases of each key, in the order in which their holders had them. Call with mu held.
func (j *judge) byKey() map[string][]*span {
	byKey := map[string][]*span{}
	for _, s := range j.spans {
		byKey[s.Key] = append(byKey[s.Key], s)
	}
	for _, spans := range byKey {
		slices.SortFunc(spans, func(a, b *span) int { return int(a.At - b.At) })
	}
	return byKey
}

// overlaps finds leases on which two relied at once although one excludes the other, and certificates that were wrong:
// nobody may have got the lock with a greater token before a Verify that succeeds began, except readers among
// themselves. spans are those of one key, in the order of At.
func overlaps(spans []*span) (wrong []string) {
	longest, sure := map[kind]*span{}, map[kind]*span{} // those before with the latest time of each kind
	for _, s := range spans {
		for k, other := range longest {
			if s.last > 0 && s.At < other.last && s.Kind.excludes(k) {
				wrong = append(wrong, fmt.Sprintf("%v was there at %d, and %v was relied on until %d", s.word, s.At,
					other.word, other.last))
			}
		}
		for k, other := range sure {
			if s.At < other.certificate && s.Fence > other.Fence && !(s.Kind.reads() && k.reads()) {
				wrong = append(wrong, fmt.Sprintf("%v was there at %d, and %v was verified at %d", s.word, s.At, other.word,
					other.certificate))
			}
		}
		if other := longest[s.Kind]; other == nil || s.last > other.last {
			longest[s.Kind] = s
		}
		if other := sure[s.Kind]; other == nil || s.certificate > other.certificate {
			sure[s.Kind] = s
		}
	}
	return wrong
}

// handed counts the leases that came from another caller of their process, and those of readers that share a slot.
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

// greatest has the lease with the greatest token so far, and the lease of a writer with the greatest token.
type greatest struct{ any, writer *span }

func (g *greatest) add(s *span) {
	if g.any == nil || s.Fence > g.any.Fence {
		g.any = s
	}
	if !s.Kind.reads() && (g.writer == nil || s.Fence > g.writer.Fence) {
		g.writer = s
	}
}

// above returns the lease whose token is not smaller than that of s, although s came after it. It is nil if there is
// none. A lease of Downgrade has the token that it had before.
func (g *greatest) above(s *span) *span {
	before := g.any
	if s.Kind.reads() {
		before = g.writer
	}
	if before == nil || s.Fence > before.Fence || s.downgraded() {
		return nil
	}
	return before
}

// tokens finds tokens that repeat, and one that is not greater than that of a lease which somebody had before the call
// began, or relied on before somebody relied on this one. Readers are in no order among themselves, and the token of
// Downgrade is that of the lease before. spans are those of one key, in the order of At.
func tokens(spans []*span) (wrong []string) {
	var holders greatest
	before := byLease(spans)
	for _, s := range spans {
		if from := before[s.From]; s.downgraded() && from.Fence != s.Fence {
			wrong = append(wrong, fmt.Sprintf("the token of %v is not that of %v", s.word, from.word))
		}
		if s.last == 0 { // its time may have been over when it came
			continue
		}
		if other := holders.above(s); other != nil {
			wrong = append(wrong, fmt.Sprintf("%v was relied on after %v, and its token is not greater", s.word, other.word))
		}
		holders.add(s)
	}
	seen := map[uint64]*span{}
	var earlier greatest
	had := 0
	for _, s := range slices.SortedFunc(slices.Values(spans), func(a, b *span) int { return int(a.Began - b.Began) }) {
		for ; had < len(spans) && spans[had].At < s.Began; had++ {
			earlier.add(spans[had])
		}
		if other := earlier.above(s); other != nil {
			wrong = append(wrong, fmt.Sprintf("the token of %v is not greater than that of %v", s.word, other.word))
		}
		switch other := seen[s.Fence]; {
		case other == nil:
			seen[s.Fence] = s
		case s.downgraded() || s.Kind.reads() && other.Kind.reads():
		default:
			wrong = append(wrong, fmt.Sprintf("%v and %v have one token", s.word, other.word))
		}
	}
	return wrong
}

// gaps finds others that wrote while an upgradeable lease became an exclusive one, or an exclusive or upgradeable lease
// a shared one. spans are those of one key, in the order of At.
func gaps(spans []*span) (wrong []string) {
	before := byLease(spans)
	var writers []*span
	for _, s := range spans {
		if s.Kind == exclusive && s.last > 0 {
			writers = append(writers, s)
		}
	}
	for _, s := range spans {
		if !s.changed() || s.last == 0 {
			continue
		}
		from := before[s.From]
		next, _ := slices.BinarySearchFunc(writers, from.At, func(w *span, at int64) int { return int(w.At - at) })
		for _, w := range writers[next:] {
			if w.At >= s.last {
				break
			}
			if w != s && w != from {
				wrong = append(wrong, fmt.Sprintf("%v was relied on between %v and %v", w.word, from.word, s.word))
			}
		}
	}
	return wrong
}

func byLease(spans []*span) map[string]*span {
	all := map[string]*span{}
	for _, s := range spans {
		all[s.Lease] = s
	}
	return all
}
