package wire

import (
	"strconv"
	"strings"
)

// CounterDigits is how many digits the counter in a lock's value has.
const CounterDigits = 16

// Value is what the value of a lock says; see value.lua.
type Value struct {
	Counter      int64
	Owner, Label string
	Marked       bool // somebody waits
}

// ParseValue returns false if v is not the value of a lock: another library's value, or that of a lock that is kept
// after its release.
func ParseValue(v string) (Value, bool) {
	f := strings.Split(strings.TrimSuffix(v, "+"), "|")
	if len(f) != 4 || len(f[0]) != CounterDigits || !digits(f[0]) || !digits(f[2]) || strings.Contains(f[3], "+") {
		return Value{}, false
	}
	counter, err := strconv.ParseInt(f[0], 10, 64)
	return Value{counter, f[1], f[3], strings.HasSuffix(v, "+")}, err == nil
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
