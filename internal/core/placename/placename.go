// Package placename has the names of locks that stand for the places of a key, as packages semaphore and rwlock have
// them. The names alone say which locks belong together. So whoever asks for one of them, also by itself, as an
// operator does, means the same lock, and no two programs can disagree.
package placename

import (
	"strconv"
	"strings"
)

// Of returns the name of a lock that belongs to key. All names of a key have the same hash slot of a Redis Cluster, and
// no two keys have a name in common. what is a number, "gate" or "intent", perhaps behind "rw"; or, for
// the group of all places, "permits" or "rw".
func Of(key, what string) string {
	if _, after, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(after, "}"); found && tag != "" { // Redis Cluster hashes only the tag
			return key + "##" + what
		}
	}
	if strings.HasPrefix(key, "}") { // the tag below would be empty, so that the whole name is hashed
		return "{#}" + key + "##:" + what
	}
	return "{" + key + "}#" + what
}

// Parse is the reverse of Of. ok is false for other names.
func Parse(name string) (key, what string, ok bool) {
	at := strings.LastIndexByte(name, '#')
	if at < 0 {
		return "", "", false
	}
	key, what = name[:at], name[at+1:]
	if rest, found := strings.CutPrefix(what, ":"); found {
		key, what = strings.TrimSuffix(strings.TrimPrefix(key, "{#}"), "#"), rest
	} else if own, found := strings.CutSuffix(key, "#"); found {
		key = own
	} else {
		key = strings.TrimSuffix(strings.TrimPrefix(key, "{"), "}")
	}
	member := strings.TrimPrefix(what, "rw")
	_, err := strconv.ParseUint(member, 10, 16)
	known := err == nil || member == "gate" || member == "intent" || what == "permits" || what == "rw"
	return key, what, known && Of(key, what) == name
}

// Apart returns the names of some locks that programs have which make a lock of each place of a group: those of the
// gates, and of the first place. rw says that the group is one of readers and writers. Middleware may have put
// something before or after all names. Apart returns none if it cannot tell.
func Apart(group string, rw bool) (names []string) {
	what, members := "permits", []string{"gate", "0"}
	if rw {
		what, members = "rw", []string{"rwgate", "rwintent", "rw0"}
	}
	at := max(strings.LastIndex(group, "#"+what), strings.LastIndex(group, "#:"+what)+1)
	if at < 1 {
		return nil
	}
	for _, member := range members {
		names = append(names, group[:at+1]+member+group[at+1+len(what):])
	}
	return names
}

// Block is how many places a group has at most, beside its gates. A key with more has several groups.
const Block = 64

// Group returns the name of the first place of the group that a lock belongs to, and what the lock is in there. ok is
// false if the name is not one of Of. Something may be put before all names of a key, but not after them.
func Group(name string) (first, member string, ok bool) {
	at := strings.LastIndexByte(name, '#')
	if at < 1 || name[at-1] != '#' && name[at-1] != '}' {
		return "", "", false
	}
	front, what := name[:at+1], name[at+1:]
	for _, part := range []string{":", "rw"} {
		if rest, found := strings.CutPrefix(what, part); found {
			front, what = front+part, rest
		}
	}
	if what == "gate" || what == "intent" {
		return front + "0", what, true
	}
	n, err := strconv.ParseUint(what, 10, 16)
	if err != nil || what != strconv.FormatUint(n, 10) {
		return "", "", false
	}
	return front + strconv.FormatUint(n-n%Block, 10), what, true
}
