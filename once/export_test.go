package once

import "time"

// Clock replaces the wall clock of a call.
func Clock(now func() time.Time) Option { return func(o *options) { o.now = now } }
