package fault

import "time"

// SetPatience lets the test of Wait's failure not take as long as the failure.
func (p *Proxy) SetPatience(d time.Duration) { p.patience = d }
