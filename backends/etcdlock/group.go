package etcdlock

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// A group has a directory, as a lock has. A holder has the entry directory + owner value, as the holder of a lock has,
// and its revision, lease, extension and release are those of a lock. A waiter has the entry directory + waits + owner
// value. A grant to a waiter deletes the one and creates the other.
//
// Each grant is one transaction, which rests on a read of the directory. It compares that no entry of a holder was
// created since. So all holders that there are when it is executed were seen by the read: they can only have left, or
// have become shared. A waiter that it serves has to be there still. So grants of a group come one after another,
// whoever makes them and however late they are executed, and there is no state beside the entries that could disagree
// with them.

const (
	// waits is before the owner value of a waiter, and after that of a holder that has released its place with Keep.
	// No owner value has it, and it sorts before all that these begin with.
	waits = "%"

	// grouped begins the value of an entry of a group. No label has a |, and keptValue is another text.
	grouped = "|1 "
)

func waiterName(dir, token string) string { return dir + waits + token }
func keptName(dir, token string) string   { return dir + token + waits }

// seat is an entry of a group, of a holder or of a waiter.
type seat struct {
	place
	name, token string
	created     int64 // the revision
	lease       clientv3.LeaseID
	value       string
	kept        bool
}

// place is what the value of an entry says.
type place struct {
	want    backend.Group
	seconds int64  // the TTL
	permits []int  // nil for locks, and for waiters
	offset  int    // of the token, among those of the revision: a transaction may make several grants
	tries   bool   // of a waiter that takes what is free now, or leaves
	label   string // of the owner
}

// text returns the value of an entry.
func (p *place) text() string {
	return fmt.Sprint(grouped, int(p.want.Kind), " ", p.want.N, " ", p.want.Weight, " ", p.seconds, " ", p.offset, " ",
		boolean(p.tries), " ", ranges(p.permits), " ", p.want.From, "|", p.label)
}

// placeOf is the reverse of text. ok is false for what is no entry of a group.
func placeOf(text string) (p place, ok bool) {
	rest, ok := strings.CutPrefix(text, grouped)
	if !ok {
		return p, false
	}
	rest, p.label, ok = strings.Cut(rest, "|")
	fields := strings.SplitN(rest, " ", 8)
	if !ok || len(fields) < 8 {
		return p, false
	}
	var kind, tries int
	for i, n := range []*int{&kind, &p.want.N, &p.want.Weight, nil, &p.offset, &tries} {
		if n != nil {
			var err error
			*n, err = strconv.Atoi(fields[i])
			ok = ok && err == nil
		}
	}
	var err error
	p.seconds, err = strconv.ParseInt(fields[3], 10, 64)
	p.want.Kind, p.tries, p.want.From = backend.Kind(kind), tries != 0, fields[7]
	ok = ok && err == nil && kind >= int(backend.Permit) && kind <= int(backend.Exclusive)
	if p.permits, err = numbersOf(fields[6]); err != nil {
		ok = false
	}
	return p, ok
}

// isGrouped reports whether an entry is one of a group.
func isGrouped(kv *mvccpb.KeyValue) bool { return strings.HasPrefix(string(kv.Value), grouped) }

// ranges returns numbers in ascending order as a text, such as 0-3,7.
func ranges(numbers []int) string {
	var text strings.Builder
	for i := 0; i < len(numbers); {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(strconv.Itoa(numbers[i]))
		if last > i {
			text.WriteString("-" + strconv.Itoa(numbers[last]))
		}
		i = last + 1
	}
	return text.String()
}

// numbersOf is the reverse of ranges.
func numbersOf(text string) (numbers []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		low, high, found := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		last := first
		if err == nil && found {
			last, err = strconv.Atoi(high)
		}
		if err != nil || first < 0 || last-first > maxNumber {
			return nil, fmt.Errorf("%w: numbers %.64q", locker.ErrForeignKey, text)
		}
		for n := first; n <= last; n++ {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// maxNumber bounds what a strange text can make of a few bytes.
const maxNumber = 1 << 16

// group is what one read of a directory has shown.
type group struct {
	revision int64 // of the read
	held     []seat
	waiting  []seat // upgrades, and then the others in the order of their arrival
}

// groupOf reads what a directory of a group has. The error matches locker.ErrForeignKey if there is something else.
func groupOf(dir string, kvs []*mvccpb.KeyValue, revision int64, permits bool) (*group, error) {
	g := &group{revision: revision}
	for _, kv := range kvs {
		m, err := seatOf(dir, kv)
		if err != nil {
			return nil, err
		}
		switch {
		case permits != (m.want.Kind == backend.Permit):
			return nil, fmt.Errorf("%w: %.64q is of a group of another sort", locker.ErrForeignKey, m.name)
		case strings.HasPrefix(m.name, dir+waits):
			m.token = strings.TrimPrefix(m.token, waits)
			g.waiting = append(g.waiting, m)
		default:
			m.token, m.kept = strings.CutSuffix(m.token, waits)
			g.held = append(g.held, m)
		}
	}
	inOrder(g.waiting)
	return g, nil
}

// inOrder sorts those that wait: upgrades, and then the others in the order of their arrival.
func inOrder(waiting []seat) {
	slices.SortFunc(waiting, func(a, b seat) int {
		return cmp.Or(boolean(a.want.From == "")-boolean(b.want.From == ""), cmp.Compare(a.created, b.created))
	})
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// seatOf reads one entry. What it returns has all of the name behind dir as its token.
func seatOf(dir string, kv *mvccpb.KeyValue) (seat, error) {
	p, ok := placeOf(string(kv.Value))
	if !ok || kv.Lease == 0 {
		return seat{}, fmt.Errorf("%w: %.64q is no entry of a group", locker.ErrForeignKey, kv.Key)
	}
	name := string(kv.Key)
	return seat{
		place: p, name: name, token: strings.TrimPrefix(name, dir), created: kv.CreateRevision,
		lease: clientv3.LeaseID(kv.Lease), value: string(kv.Value),
	}, nil
}

// find returns the entry of an owner among some of a group, or nil.
func find(seats []seat, token string) *seat {
	for i, m := range seats {
		if m.token == token && !m.kept {
			return &seats[i]
		}
	}
	return nil
}

// inWayOf reports whether a caller that wants that may have to wait for m, which has something.
func (m *seat) inWayOf(want *backend.Group) bool {
	if want.Kind == backend.Permit {
		return len(m.permits) > 0 && m.permits[0] < want.N
	}
	return m.want.Kind.Excludes(want.Kind) && (m.kept || m.token != want.From)
}

// has reports whether the upgradeable lock is held that an upgrade is of. It does not if want is no upgrade.
func (g *group) has(want *backend.Group) bool {
	from := find(g.held, want.From)
	return from != nil && from.want.Kind == backend.Upgradeable
}

// passes reports whether a caller that wants that waits for nothing of a waiter that was there before it.
func passes(want *backend.Group, w *seat) bool {
	return w.tries || want.From != "" || want.Kind == backend.Shared && w.want.Kind == backend.Upgradeable
}

// fit returns the numbers of the permits that a caller can have. The error matches locker.ErrHeld if what it wants is
// not free, and locker.ErrNotHeld if it is an upgrade of what its caller does not have.
func (g *group) fit(want *backend.Group) (permits []int, err error) {
	if want.Kind == backend.Permit {
		if permits = g.lowest(want); len(permits) < want.Weight {
			return nil, locker.ErrHeld
		}
		return permits, nil
	}
	if want.From != "" && !g.has(want) {
		return nil, locker.ErrNotHeld
	}
	if slices.ContainsFunc(g.held, func(m seat) bool { return m.inWayOf(want) }) {
		return nil, locker.ErrHeld
	}
	return nil, nil
}

// lowest returns the lowest numbers of free permits: as many as are wanted, or all that are free.
func (g *group) lowest(want *backend.Group) (permits []int) {
	taken := make([]bool, want.N)
	for _, m := range g.held {
		for _, i := range m.permits {
			if i < want.N {
				taken[i] = true
			}
		}
	}
	for i := 0; i < want.N && len(permits) < want.Weight; i++ {
		if !taken[i] {
			permits = append(permits, i)
		}
	}
	return permits
}

// errLost means that others come at the same time: some were granted something since the group was read, or are about
// to be. What a newcomer wants may be free all the same, if it queues behind them.
var errLost = errors.New("others come at the same time")

// admit returns what a newcomer can have at once. The error matches errLost if there is room for it behind the waiters
// that are about to be served. If the error matches locker.ErrHeld, it describes the caller in front, or one that has
// what the caller wants.
func (g *group) admit(want *backend.Group) (permits []int, err error) {
	if want.From != "" && !g.has(want) {
		return nil, locker.ErrNotHeld
	}
	after := group{held: g.held, waiting: append(slices.Clone(g.waiting), seat{
		place: place{want: *want}, created: math.MaxInt64,
	})}
	inOrder(after.waiting)
	served := after.next(len(after.waiting))
	switch own := find(served, ""); {
	case own == nil:
		return nil, g.refusal(want)
	case own.offset > 0:
		return nil, errLost
	default:
		return own.permits, nil
	}
}

// refusal says why a newcomer that wants that has to wait.
func (g *group) refusal(want *backend.Group) error {
	for i := range g.waiting {
		if !passes(want, &g.waiting[i]) {
			return &locker.HeldError{Label: g.waiting[i].label}
		}
	}
	return g.heldFor(want)
}

// heldFor describes the holder that a caller waits for which wants that. How much is left of its time, a second request
// would tell. This returns its TTL, which is the most that can be left.
func (g *group) heldFor(want *backend.Group) *locker.HeldError {
	for i := range g.held {
		if m := &g.held[i]; m.inWayOf(want) {
			return &locker.HeldError{Label: m.label, Remaining: time.Duration(m.seconds) * time.Second}
		}
	}
	return &locker.HeldError{}
}

// ahead returns the waiter just before the i-th of those that it waits behind, or nil if there is none.
func (g *group) ahead(i int) *seat {
	for j := i - 1; j >= 0; j-- {
		if !passes(&g.waiting[i].want, &g.waiting[j]) {
			return &g.waiting[j]
		}
	}
	return nil
}

// next returns the waiters that can be served now, with what they get, most of them at most: in their order, up to the
// first that cannot have all that it wants. Those that want a shared lock pass those that want an upgradeable one.
// A waiter for an upgrade whose lock has ended is about to leave, and so is one that only tries.
func (g *group) next(most int) (served []seat) {
	reading := 0
	for _, w := range g.waiting {
		reading += boolean(w.want.Kind == backend.Shared)
	}
	after := group{held: slices.Clone(g.held)}
	for _, w := range g.waiting {
		permits, err := after.fit(&w.want)
		switch {
		case err == nil:
			w.permits, w.offset, w.tries = permits, len(served), false
			reading -= boolean(w.want.Kind == backend.Shared)
			after.held, served = append(after.held, w), append(served, w)
		case errors.Is(err, locker.ErrNotHeld), w.tries, w.want.Kind == backend.Upgradeable && reading > 0:
		default:
			return served
		}
		if len(served) == most {
			break
		}
	}
	return served
}

// wants reports whether one of those that wait may have to wait for what that owner has.
func wants(waiting []seat, p *place, token string) bool {
	return slices.ContainsFunc(waiting, func(w seat) bool {
		m := seat{place: *p, token: token}
		return !w.tries && m.inWayOf(&w.want)
	})
}

// place returns which of those that wait an owner is, or -1.
func (g *group) place(token string) int {
	return slices.IndexFunc(g.waiting, func(w seat) bool { return w.token == token })
}

// isPermit reports whether the value of an entry of a group is one of permits.
func isPermit(text string) bool {
	p, ok := placeOf(text)
	return ok && p.want.Kind == backend.Permit
}
