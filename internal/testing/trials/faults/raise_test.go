package faults

import (
	"strings"
	"time"

	"github.com/golocker/locker/internal/testing/fault"
	"github.com/golocker/locker/internal/testing/wire"
	"github.com/golocker/locker/middleware/audit"
)

// raise reports whether a request is what Redlock asks nodes by whose counters are behind.
func raise(r fault.Request) bool { return wire.Calls(r.Args, "raise") }

// countRaises finds out which raises the fault has hit. They are a part of Lock and not in the history, but proxies see
// them: ok is what was accepted and the client was told, held what was refused.
func (r *result) countRaises(b *testbed) {
	began := time.Now().Add(-b.history.Now())
	for _, links := range b.proxies {
		for _, p := range links {
			for _, e := range p.Exchanges() {
				if !raise(e.Request) || strings.HasPrefix(e.Reply, "-NOSCRIPT") { // which is followed by another try
					continue
				}
				from, to, outcome := e.Seen.Sub(began), e.Answered.Sub(began), audit.Unknown
				switch {
				case e.Reply == ":1":
					outcome = audit.OK
				case e.Reply == ":0":
					outcome = audit.Held
				case e.Answered.IsZero():
					to = from + exchangeTimeout // for so long at most the client has waited
				}
				r.add("raise", from, to, outcome)
			}
		}
	}
}
