package faults

import (
	"strings"
	"time"

	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/trials/history"
)

// raise reports whether a request raises a counter. Redlock sends it to nodes whose counters are behind.
func raise(r fault.Request) bool { return script(r) && scriptNames()[r.Args[1]] == "raise" }

// countRaises counts the raises that the fault has hit. Raises are a part of Lock and not in the history, but the
// proxies see them. ok counts raises that were accepted and whose reply the client got. held counts raises that were
// refused.
func (r *result) countRaises(b *bed) {
	began := time.Now().Add(-b.history.Now())
	for _, links := range b.proxies {
		for _, p := range links {
			for _, e := range p.Exchanges() {
				if !raise(e.Request) || strings.HasPrefix(e.Reply, "-NOSCRIPT") { // the client then sends the text of the script
					continue
				}
				from, to, outcome := e.Seen.Sub(began), e.Answered.Sub(began), history.Unknown
				switch {
				case e.Reply == ":1":
					outcome = history.OK
				case e.Reply == ":0":
					outcome = history.Held
				case e.Answered.IsZero():
					to = from + exchangeTimeout // the client has waited for this time at most
				}
				r.add("raise", from, to, outcome)
			}
		}
	}
}
