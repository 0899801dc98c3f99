package recordstore

import (
	"math/rand/v2"
	"time"
)

// Faults makes a function that lets faults happen to one in a few requests. Those that are long are longer than calls
// wait.
func Faults(rng *rand.Rand) func(Request) Fault {
	few := 2 + rng.IntN(10)
	delay := func() time.Duration { return time.Duration(rng.Int64N(int64(3 * time.Second))) }
	return func(Request) (f Fault) {
		if rng.IntN(few) > 0 {
			return f
		}
		switch rng.IntN(7) {
		case 0:
			f.Before = delay()
		case 1:
			f.After = delay()
		case 2:
			f.Before, f.After = delay()/10, delay()/10
		case 3:
			f.Lost = true
		case 4:
			f.Twice = true
		case 5:
			f.Refused = true
		case 6:
			f.Doubted = true
		}
		return f
	}
}
