package tracing

import "github.com/golocker/locker"

// Sets returns how many sets of attributes l keeps.
func Sets(l locker.Locker) int { return len(*l.(*traced).metrics.sets.Load()) }
