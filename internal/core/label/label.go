// Package label says which texts name the holder of a lock, and which text does so by default.
package label

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Max is the length of the longest label, in bytes.
const Max = 64

var errNotAllowed = fmt.Errorf("a label has at most %d bytes of printable UTF-8 text, without | and +", Max)

// Check returns an error that says what is allowed if text cannot be a label. The error does not repeat the text.
func Check(text string) error {
	if len(text) > Max || !utf8.ValidString(text) || strings.ContainsFunc(text, isNotAllowed) {
		return errNotAllowed
	}
	return nil
}

// isNotAllowed also refuses the characters that stores use as separators.
func isNotAllowed(r rune) bool { return r == '|' || r == '+' || !unicode.IsPrint(r) }

// Default is the label of this process: the name of the host and the process ID.
var Default = func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return ofProcess(host, os.Getpid())
}()

// ofProcess returns host and pid as a label. Characters that a host name should not have become hyphens. If the name is
// too long, the middle is left out: some names differ at the beginning and others at the end.
func ofProcess(host string, pid int) string {
	host = strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII || r == ' ' || isNotAllowed(r) {
			return '-'
		}
		return r
	}, host)
	const gap = "…"
	process := ":" + strconv.Itoa(pid)
	if room := Max - len(process); len(host) > room {
		end := (room - len(gap)) / 2
		host = host[:room-len(gap)-end] + gap + host[len(host)-end:]
	}
	return host + process
}

// Show returns a label for use in a sentence. It quotes a label with spaces, and one that is not a label because
// another program has written it.
func Show(text string) string {
	if text == "" || Check(text) != nil || strings.ContainsAny(text, "\" ") {
		return strconv.Quote(text)
	}
	return text
}
