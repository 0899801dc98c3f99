package record

import (
	"slices"
	"strings"

	"github.com/golocker/locker/internal/core/placename"
)

// place says where a lock is: in the record of that name, alone, or in there under that key, among those of a group.
type place struct{ name, at string }

// placeOf returns where the lock of a key is. Locks that stand for the places of a key, as those of packages semaphore
// and rwlock, share a record: 64 and their gates. That follows from the name alone. So all processes agree on it, also
// one that asks for a single place, and semaphores with different numbers of permits.
func (b *Backend) placeOf(key string) place {
	_, member, _ := placename.Group(b.prefix + key)
	return place{NameOf(b.prefix + key), member}
}

// sightingOf returns the name by which a lock is remembered. Names of records have no slash.
func (p place) sightingOf() string {
	if p.at == "" {
		return p.name
	}
	return p.name + "/" + p.at
}

// group is what a record has beside the locks of a group.
type group struct {
	// last is the last token that was issued for any of them. It never falls. So locks that are free are not kept.
	last uint64

	// left has the nonces of the last writes that have released locks, cut short: that of the last one first. By them, a
	// release whose success was reported as a conflict, or that is repeated, is told from a lock that was lost.
	left string
}

// maxLeft is how many nonces there are. So often locks of a group may be released while a release waits for its answer.
const maxLeft = 32

// leaves notes that a write with that nonce has released a lock.
func (g *group) leaves(nonce string) {
	nonce = nonce[:min(overLen, len(nonce))]
	all := strings.Split(g.left, ",")
	if all[0] == nonce { // it has released others, too
		return
	}
	all = append([]string{nonce}, all...)
	g.left = strings.TrimSuffix(strings.Join(all[:min(maxLeft, len(all))], ","), ",")
}

// follows reports whether one of the writes with these nonces has released the lock of their owner, as far as the
// record tells. known is false if one may have, because there were more releases since than the record tells of. since
// is what the record said while the owner had the lock.
func (e *entry) follows(nonces []string, since *entry) (follows, known bool) {
	all, most := strings.Split(e.Over, ","), maxOver
	if e.grouped() {
		most = maxLeft
	}
	for _, n := range all {
		if n != "" && slices.ContainsFunc(nonces, func(nonce string) bool { return strings.HasPrefix(nonce, n) }) {
			return true, true
		}
	}
	last, _, _ := strings.Cut(since.Over, ",")
	return false, len(all) < most || slices.Contains(all, last)
}

// grouped reports whether the record has a group of locks.
func (e *entry) grouped() bool { return e.sheet != nil && e.sheet.group != nil }
