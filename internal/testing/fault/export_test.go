package fault

import "time"

// SetPatience makes Wait fail after d, so that the test of its failure is short.
func (p *Proxy) SetPatience(d time.Duration) { p.patience = d }
