//go:build seeded

package sim

import "runtime"

const seeded = true

// seedRuntime makes the runtime's own draws follow from the seed; see overlay.
func seedRuntime(seed uint64) { runtime.SimSeed(seed*2 + 1) }
