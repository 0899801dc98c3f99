package script

import (
	"regexp"
	"strconv"
)

// Kept is the prefix of the value of a lock that stays taken after its release; see undo.lua.
const Kept = "hold:"

// Value is what the value of a lock says.
type Value struct {
	Counter uint64
	Token   string // of the owner
	Node    int    // the number of this node among the owner's nodes
	Label   string
}

var valuePattern = regexp.MustCompile(`^(\d{16})\|([^|]*)\|(\d{1,2})\|([^|+]*)\+?$`)

// ReadValue reads the value of a lock; see value.lua. It returns false if the value is not that of a lock of this
// library, or that of a lock that stays taken after its release.
func ReadValue(value string) (v Value, ours bool) {
	m := valuePattern.FindStringSubmatch(value)
	if m == nil {
		return Value{}, false
	}
	v = Value{Token: m[2], Label: m[4]}
	v.Counter, _ = strconv.ParseUint(m[1], 10, 64)
	v.Node, _ = strconv.Atoi(m[3])
	return v, true
}
