package judge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker/middleware/audit"
)

// Rule is one of the rules. Tests and trials know it by its name, people by its Title.
type Rule = string

// The rules.
const (
	Exclusion  Rule = "ME"
	ReadWrite  Rule = "RW"
	Permits    Rule = "PERMITS"
	Unique     Rule = "UNIQ"
	Grant      Rule = "GRANT"
	RealTime   Rule = "RT"
	Order      Rule = "HO"
	Confirmed  Rule = "VER"
	Proof      Rule = "CERT"
	Early      Rule = "LOST"
	Late       Rule = "DONE"
	Contrary   Rule = "AFTER"
	Promptness Rule = "PROMPT"
)

// The rules of remarks.
const (
	WentOn Rule = "WENT ON"
	Stores Rule = "STORES"
)

// Titles say what each rule finds.
var Titles = map[Rule]string{
	Exclusion:  "two held the lock at once",
	ReadWrite:  "a writer held the key beside a reader",
	Permits:    "more permits were held than there are",
	Unique:     "a fencing token was given twice",
	Grant:      "one grant was used by two",
	RealTime:   "a fencing token fell",
	Order:      "a later hold has the smaller fencing token",
	Confirmed:  "the store confirmed a lock that somebody else had got since",
	Proof:      "a lock was verified that somebody else had got since",
	Early:      "the store had lost a lock before its time",
	Late:       "a loss was told late",
	Contrary:   "the store released a lock that it had called lost",
	Promptness: "a call returned late",
	WentOn:     "a holder went on after it was told of its loss",
	Stores:     "a key was locked in several stores, which do not exclude each other",
}

// Finding says where a promise was broken.
type Finding struct {
	Rule    Rule
	Text    string
	Entries []Entry // the lines that show it
	More    int     // further findings of this rule and key, which are left out
}

func (f Finding) String() string { return f.Rule + ": " + f.Text }

// Options say how logs are judged.
type Options struct {
	// Clocks says that processes are compared by their wall clocks, of which no two differ by more than ClockError.
	Clocks     bool
	ClockError time.Duration

	// Slack is how late a loss may be told, beside ClockError.
	Slack time.Duration
	// Prompt is how much later than its deadline a call may return. If it is 0, this is not checked.
	Prompt time.Duration

	// Remark is called for what breaks no promise of a lock, and may be the cause of an incident. It may be nil.
	Remark func(Finding)
}

// maxFound is how many findings of a rule are kept for each key.
const maxFound = 20

// Judge calls found for each finding, and returns how many holds it has judged.
func (l *Logs) Judge(o Options, found func(Finding)) (holds int, err error) {
	for _, p := range l.parts {
		entries, err := l.load(p)
		if err != nil {
			return holds, err
		}
		type key struct{ store, id string }
		byKey, names := map[key][]Entry{}, map[key]string{}
		for _, e := range entries {
			k := key{e.Store, e.id()}
			if l.oneStore {
				k.store = ""
			}
			if byKey[k] = append(byKey[k], e); names[k] == "" || e.Key != "" {
				names[k] = e.name()
			}
		}
		report := func(c *checker) {
			for _, f := range c.found {
				switch remark := f.Rule == WentOn || f.Rule == Stores; {
				case !remark:
					found(f)
				case o.Remark != nil:
					o.Remark(f)
				}
			}
		}
		stores := &checker{logs: l, kept: map[Rule][]int{}}
		inStores := map[string][]Entry{} // the first acquisition in each, by the id of the key
		keys := slices.SortedFunc(maps.Keys(byKey), func(a, b key) int {
			return cmp.Or(cmp.Compare(a.store, b.store), cmp.Compare(names[a], names[b]))
		})
		for _, k := range keys {
			c := &checker{logs: l, Options: o, name: names[k], kept: map[Rule][]int{}}
			holds += c.key(byKey[k])
			report(c)
			if i := slices.IndexFunc(byKey[k], func(e Entry) bool { return e.Outcome == audit.OK && e.Fence > 0 }); i >= 0 {
				inStores[k.id] = append(inStores[k.id], byKey[k][i])
			}
		}
		for _, id := range slices.Sorted(maps.Keys(inStores)) {
			stores.stores(inStores[id])
		}
		report(stores)
	}
	return holds, nil
}

// checker checks the lines of one key.
type checker struct {
	Options
	logs  *Logs
	slack time.Duration // by how much the clocks of two holds may differ
	cross bool          // holds of different processes are compared, and no others
	name  string        // of the key
	found []Finding
	kept  map[Rule][]int // their positions
}

// key checks all rules, and returns how many holds there are.
func (c *checker) key(entries []Entry) int {
	c.promptness(entries)
	inOrder(entries)
	apart := 24 * time.Hour // of clocks of which nothing is known
	if c.Clocks {
		apart = c.ClockError
	}
	mine := c.logs.holds(entries, c.logs.own(entries), apart)
	c.unique(mine)
	c.grants(mine)
	byProcess := map[string][]*Hold{}
	for _, h := range mine {
		byProcess[h.Process] = append(byProcess[h.Process], h)
	}
	for _, process := range slices.Sorted(maps.Keys(byProcess)) {
		hs := byProcess[process]
		c.compare(hs)
		c.losses(hs)
	}
	if c.Clocks && len(byProcess) > 1 {
		c.cross, c.slack = true, c.ClockError
		c.compare(c.logs.holds(entries, wall(entries[0].Asked), apart))
	}
	return len(mine)
}

// compare checks the rules about the order of holds by one clock.
func (c *checker) compare(hs []*Hold) {
	c.permits(hs)
	for _, hs := range bySlot(hs) {
		c.exclusion(hs)
		c.realTime(hs)
		c.order(hs)
		c.certificates(hs)
	}
}

// bySlot returns the holds of each number of a permit, and those of locks.
func bySlot(hs []*Hold) (all [][]*Hold) {
	slots := map[int][]*Hold{}
	for _, h := range hs {
		numbers := h.Slots
		if len(numbers) == 0 {
			numbers = []int{-1}
		}
		for _, n := range numbers {
			slots[n] = append(slots[n], h)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(slots)) {
		all = append(all, slots[n])
	}
	return all
}

// stores remarks on a key that was locked in several stores. The lines show the first lock in each.
func (c *checker) stores(of []Entry) {
	if len(of) == 1 {
		return
	}
	c.name = of[0].name()
	var where []string
	for _, e := range of {
		where = append(where, fmt.Sprintf("%s by %s", e.Store, c.logs.Who(e)))
	}
	c.keep(Stores, of, "it was locked in %s", strings.Join(where, "; and in "))
}

// add adds a finding about two holds, or about one.
func (c *checker) add(rule Rule, of []*Hold, format string, args ...any) {
	alone := !slices.ContainsFunc(of, func(h *Hold) bool { return h.Process != of[0].Process })
	if c.cross && alone { // was compared by its own clock
		return
	}
	var entries []Entry
	for _, h := range of {
		entries = append(entries, h.Entry)
		if h.last != nil {
			entries = append(entries, *h.last)
		}
	}
	c.keep(rule, entries, format, args...)
}

// keep keeps a finding, or counts it if there are many.
func (c *checker) keep(rule Rule, entries []Entry, format string, args ...any) {
	kept := c.kept[rule]
	if len(kept) == maxFound {
		c.found[kept[maxFound-1]].More++
		return
	}
	c.kept[rule] = append(kept, len(c.found))
	c.found = append(c.found, Finding{
		Rule: rule, Text: fmt.Sprintf("key %s: ", c.name) + fmt.Sprintf(format, args...), Entries: entries,
	})
}

// exclusion (ME, RW) checks that the times for which holders rely on a lock do not overlap, unless they may.
func (c *checker) exclusion(hs []*Hold) {
	var before []*Hold // which go on, the longest of each kind and process
	for _, h := range hs {
		if !c.relies(h) {
			continue
		}
		before = slices.DeleteFunc(before, func(last *Hold) bool { return last.End() <= h.Return+c.slack })
		shorter := -1
		for i, last := range before {
			if last.Kind == h.Kind && last.Process == h.Process {
				shorter = i
			}
			if !h.excludes(last) {
				continue
			}
			rule := Exclusion
			switch {
			case h.Grant != "" && h.Grant == last.Grant:
				rule = Grant
			case h.reads() != last.reads():
				rule = ReadWrite
			}
			c.add(rule, []*Hold{last, h}, "%s; and meanwhile, for %v at least, %s", c.say(last),
				min(h.End(), last.End())-h.Return-c.slack, c.say(h))
		}
		switch {
		case shorter < 0:
			before = append(before, h)
		case before[shorter].End() < h.End():
			before[shorter] = h
		}
	}
}

// relies reports whether a holder has had the lock for some time, whatever the error of the clock.
func (c *checker) relies(h *Hold) bool { return h.End() > h.Return+c.slack }

// permits (PERMITS) checks that there are never more permits held than the caller says that has the greatest limit.
func (c *checker) permits(hs []*Hold) {
	var held []*Hold
	for _, h := range hs {
		if h.Limit == 0 || len(h.Slots) == 0 || !c.relies(h) {
			continue
		}
		held = slices.DeleteFunc(held, func(other *Hold) bool { return other.End() <= h.Return+c.slack })
		held = append(held, h)
		limit, n := 0, 0
		for _, h := range held {
			limit, n = max(limit, h.Limit), n+len(h.Slots)
		}
		if n > limit {
			c.add(Permits, held, "%d permits of %d were held when %s", n, limit, c.say(h))
		}
	}
}

// unique (UNIQ) checks that no token was given twice, and that no token of a block was given to another.
func (c *checker) unique(hs []*Hold) {
	byToken := slices.SortedStableFunc(slices.Values(hs), func(a, b *Hold) int {
		first, _ := a.block()
		other, _ := b.block()
		return cmp.Or(cmp.Compare(first, other), cmp.Compare(a.Fence, b.Fence))
	})
	var last *Hold
	for _, h := range byToken {
		first, end := h.block()
		switch {
		case h.Fence == 0, h.Event == audit.Extended: // a share keeps its token
			continue
		case last != nil && !(h.reads() && last.reads()):
			if _, lastEnd := last.block(); h.Fence == last.Fence || h.Grant != last.Grant && first < lastEnd {
				c.add(Unique, []*Hold{last, h}, "%s; and %s", c.say(last), c.say(h))
			}
		}
		if last == nil || end >= second(last.block()) {
			last = h
		}
	}
}

func second(_, end uint64) uint64 { return end }

// grants (GRANT) checks that no two processes have leases of one grant.
func (c *checker) grants(hs []*Hold) {
	seen := map[string]*Hold{}
	for _, h := range hs {
		if other := seen[h.Grant]; other != nil && h.Grant != "" && other.Process != h.Process {
			c.add(Grant, []*Hold{other, h}, "%s; and %s", c.say(other), c.say(h))
		}
		seen[h.Grant] = h
	}
}

// greatest has the hold with the greatest token so far, and that of a writer.
type greatest struct{ any, writer *Hold }

func (g *greatest) add(h *Hold) {
	if g.any == nil || h.Fence > g.any.Fence {
		g.any = h
	}
	if !h.reads() && (g.writer == nil || h.Fence > g.writer.Fence) {
		g.writer = h
	}
}

// above returns a hold with a greater token than that of h, to which it has to be in order, or nil. Readers among
// themselves are in none.
func (g *greatest) above(h *Hold) *Hold {
	of := g.any
	if h.reads() {
		of = g.writer
	}
	if of == nil || h.Fence == 0 || h.Fence >= of.Fence { // unique finds equal tokens
		return nil
	}
	return of
}

// realTime (RT) checks that an acquisition that began after another one had returned has the greater token.
func (c *checker) realTime(hs []*Hold) {
	began := slices.Clone(hs)
	slices.SortStableFunc(began, func(a, b *Hold) int { return cmp.Compare(a.Call, b.Call) })
	var before greatest
	i := 0
	for _, h := range began {
		for ; i < len(hs) && hs[i].Return+c.slack < h.Call; i++ {
			before.add(hs[i])
		}
		if other := before.above(h); other != nil {
			c.add(RealTime, []*Hold{other, h}, "%s; after that, %s", c.say(other), c.say(h))
		}
	}
}

// order (HO) checks that tokens have the order of the holds, even if the attempts overlapped.
func (c *checker) order(hs []*Hold) {
	var before greatest
	for _, h := range hs {
		if !c.relies(h) {
			continue
		}
		if last := before.above(h); last != nil && h.Return >= last.End()+c.slack {
			c.add(Order, []*Hold{last, h}, "%s; after that, %s", c.say(last), c.say(h))
		}
		before.add(h)
	}
}

// certificates checks successful extensions and releases (VER) and verifications (CERT): when one was requested, nobody
// may have had a greater token.
func (c *checker) certificates(hs []*Hold) {
	before := make([]greatest, len(hs)+1) // of the first i that returned
	for i, h := range hs {
		before[i+1] = before[i]
		before[i+1].add(h)
	}
	check := func(rule Rule, h *Hold, what string, calls ...Call) {
		for _, of := range calls {
			call := of.Asked
			if call > h.Unlock { // an upgradeable lock whose upgrade counts, and is still there
				continue
			}
			n, _ := slices.BinarySearchFunc(hs, call-c.slack,
				func(h *Hold, t time.Duration) int { return cmp.Compare(h.Return, t) })
			if other := before[n].above(h); other != nil {
				c.add(rule, []*Hold{h, other}, "%s, and was %s %v later, after %s", c.say(h), what, call-h.Return, c.say(other))
			}
		}
	}
	for _, h := range hs {
		check(Proof, h, "verified", h.Verified...)
		if h.forced {
			continue
		}
		check(Confirmed, h, "extended", h.Extended...)
		if h.Released != Never {
			check(Confirmed, h, "released", Call{Asked: h.Unlock})
		}
	}
}

// losses (LOST, AFTER, DONE) checks that no owner is told before the end of its lease that it does not have the lock,
// and later that it has, and that an owner is told no later than the end.
func (c *checker) losses(hs []*Hold) {
	for _, h := range hs {
		of := []*Hold{h}
		switch {
		case h.forced:
		case h.NotHeld < h.Until:
			c.add(Early, of, "%s, and Unlock found it gone %v before its end", c.say(h), h.Until-h.NotHeld)
		case h.lost && h.Ended < h.Until:
			c.add(Early, of, "%s, and was told %v before its end that it was gone", c.say(h), h.Until-h.Ended)
		}
		if h.again && !h.forced {
			c.add(Contrary, of, "%s, and released it although the store had said that it was gone", c.say(h))
		}
		if late := h.Ended - h.told; c.Clocks && h.Ended != Never && late > c.Slack+c.ClockError {
			c.add(Late, of, "%s, and was told %v after its end that it was over", c.say(h), late)
		}
		if h.Unlock != Never && h.Unlock-h.Ended > c.Slack {
			c.add(WentOn, of, "%s, was told that it was gone, and called Unlock %v later", c.say(h), h.Unlock-h.Ended)
		}
	}
}

// unlockBound is how long Unlock waits for its answer, whatever its context says.
const unlockBound = time.Second

// promptness (PROMPT) checks that calls return when their contexts end, and Unlock within its bound.
func (c *checker) promptness(entries []Entry) {
	for _, e := range entries {
		end := max(e.DeadlineMono, e.AskedMono)
		if e.Event == audit.Released {
			end = e.AskedMono + unlockBound
		}
		if c.Prompt > 0 && e.DeadlineMono > 0 && e.AnsweredMono > end+c.Prompt {
			c.keep(Promptness, []Entry{e}, "%s by %s returned %v after its time had ended", e.Event, c.logs.Who(e),
				e.AnsweredMono-end)
		}
	}
}

// say describes a hold for people.
func (c *checker) say(h *Hold) string {
	const short = "2006-01-02 15:04:05.000000"
	text := fmt.Sprintf("%s had it from %s for %v", c.logs.Who(h.Entry), h.Answered.UTC().Format(short),
		max(0, h.End()-h.Return))
	if h.Fence > 0 {
		text += fmt.Sprintf(" with token %d", h.Fence)
	}
	return text
}

// name returns the key for people.
func (e *Entry) name() string {
	if e.Key == "" {
		return "#" + e.KeyHash
	}
	return fmt.Sprintf("%q", e.Key)
}
