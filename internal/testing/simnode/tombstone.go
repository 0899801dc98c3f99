package simnode

import (
	"strconv"
	"strings"
)

// buried returns the kind of the owner's tombstone, or an empty string; see tombstone.lua.
func (l line) buried(o string) string {
	w, _ := l.get(l.waiters)
	kind, deadline, _ := strings.Cut(w.fields["!"+o], ":")
	if number(deadline)*1000 < l.clock() {
		return ""
	}
	return kind
}

// bury leaves a tombstone. It removes those that are over. The script removes only some of them if the hash is large.
func (l line) bury(o, kind string, ms int64) {
	now := l.clock() / 1000
	l.setField("!"+o, kind+":"+strconv.FormatInt(now+ms, 10))
	l.prolong(ms)
	w, _ := l.get(l.waiters)
	for field, value := range w.fields {
		_, deadline, _ := strings.Cut(value, ":")
		if strings.HasPrefix(field, "!") && number(deadline) < now {
			delete(w.fields, field)
		}
	}
	if len(w.fields) == 0 {
		delete(l.keys, l.waiters)
	}
}

func (l line) setField(field, value string) {
	w, ok := l.get(l.waiters)
	if !ok {
		w = entry{fields: map[string]string{}}
		l.keys[l.waiters] = w
	}
	w.fields[field] = value
}

// prolong makes the hash of waiters and tombstones live for at least ms.
func (l line) prolong(ms int64) {
	w, ok := l.get(l.waiters)
	if end := l.in(ms); ok && w.expires.Before(end) {
		w.expires = end
		l.keys[l.waiters] = w
	}
}
