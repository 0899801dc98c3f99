package lockgocron

import "time"

// SetClock replaces the clock of k by that of its scheduler.
func SetClock(k *Locker, now func() time.Time) { k.now = now }
