// Package validity has the one formula that a Client and a backend must agree on.
package validity

import "time"

// Until returns until when a holder can rely on its lock, if the TTL was set by a request that was sent at start or
// later. The allowance is that of the Redlock description: one per cent for clocks that run at different speeds (NTP
// slews by at most 0.05 %), and 2 ms for the granularity of expiry. Keys expire early on a server whose clock is too
// fast.
func Until(start time.Time, ttl time.Duration) time.Time {
	return start.Add(ttl - ttl/100 - 2*time.Millisecond)
}
