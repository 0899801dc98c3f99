package fault

import "time"

// SetHangLimit makes Wait fail after d, so that the test of its failure is short.
func (p *Proxy) SetHangLimit(d time.Duration) { p.hangLimit = d }
