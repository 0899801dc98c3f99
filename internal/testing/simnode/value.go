package simnode

import (
	"fmt"
	"strings"

	"github.com/golocker/locker/internal/testing/wire"
)

// The value of a lock is "counter|owner|node|label", with "+" at its end once somebody waits; see value.lua. A command
// gives the part from the first bar on, its text.

const counterDigits = wire.CounterDigits

// mine returns the counter in v if v is the lock of the text's owner under the text's node. Otherwise it returns 0, and
// the number under which that owner has the lock, or 0.
func mine(v, text string) (counter, alias int64) {
	own := strings.IndexByte(text[1:], '|') + 2
	if len(v) < counterDigits || !strings.HasPrefix(v[counterDigits:], text[:own]) {
		return 0, 0
	}
	has, _, _ := strings.Cut(v[counterDigits+own:], "|")
	if wants, _, _ := strings.Cut(text[own:], "|"); has == wants {
		return number(v[:counterDigits]), 0
	}
	return 0, number(has)
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// split returns the owner, the node's number and the label of a text.
func split(text string) (owner, node, label string) {
	p := strings.SplitN(text[1:], "|", 3)
	return p[0], p[1], p[2]
}

// anyCounter is greater than every counter: a release with it asks for no certificate.
const anyCounter = "9999999999999999"

func counterText(c int64) string { return fmt.Sprintf("%0*d", counterDigits, c) }
