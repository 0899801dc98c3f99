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

// value is the lock's value while the attempt has it; see value.lua. The counter may be empty.
func (a Attempt) value(counter string) string {
	return counter + "|" + a.Token + "|" + strconv.Itoa(a.Node) + "|" + a.Label
}

// text is the lock's value without the counter.
func (a Attempt) text() string { return a.value("") }

// counterText renders a counter as it is in a lock's value.
func counterText(n uint64) string {
	digits := strconv.FormatUint(n, 10)
	return zeros[min(len(digits), len(zeros)):] + digits
}

const zeros = "0000000000000000"

// anyCounter is greater than every counter.
const anyCounter = "9999999999999999"
