package simnode

import (
	"testing"

	"github.com/golocker/locker/drivers"
)

// Scripts read numbers with leading zeros as decimals, as they do on a server.
func TestNumbersAreDecimal(t *testing.T) {
	n := New()
	for expression, want := range map[string]int64{
		"tonumber('0000000000000010')": 10,
		"'0000000000000010' + 0":       10,
		"0 + '010'":                    10,
		"'010' - '001'":                9,
		"'017' * 1":                    17,
		"'010' / '02'":                 5,
		"'017' % '010'":                7,
		"tonumber('08') + 1":           9,
		"tonumber('x') == nil and 1":   1,
		"tonumber(nil) == nil and 1":   1,
	} {
		if got := n.Execute(drivers.Command{"EVAL", "return " + expression, "0"}); got != want {
			t.Errorf("%s is %v, expected %d", expression, got, want)
		}
	}
}
