package record

import "time"

// pace makes processes that write a record all the time leave it to others. These would keep out one whose way to the
// store is longer: it finds another version each time that it writes, and never renews a lock. So they rest, at the
// same moments of the time of day, because one alone that rested would leave the record to the next one. The clocks
// decide nothing else: where they differ, some wait for longer.
type pace struct {
	period  time.Time // when the last rest began
	tries   int       // how many writes were sent since it ended
	before  int       // and in the period before
	between bool      // the last write was sent outside of a rest
	apart   time.Time // when one of those has succeeded last
	within  bool      // one has succeeded during the last rest
}

const (
	// restEvery is how often there is a rest, and restFor how long it takes: that is for one or two tries of a process
	// whose round trip takes 50 ms. Each renewal of others, which may take a sixth of the TTL, has one.
	restEvery = 4 * time.Second
	restFor   = 250 * time.Millisecond

	// leastEvery is how often there is one if the TTLs of others are short.
	leastEvery = restEvery / 16

	// lost is after how many periods without success a process is one of those that others rest for.
	lost = 3
)

// wrote notes that a write has succeeded.
func (p *pace) wrote() {
	if p.between {
		p.apart = time.Now()
	} else {
		p.within = true
	}
}

// rest is called before s is replaced, by a process whose locks have these owners. It returns for how long nothing is
// to be written first.
func (p *pace) rest(s *sheet, mine map[string]bool) time.Duration {
	every, pause := restEvery, restFor
	for at := range s.locks {
		e := s.entry(at)
		if e.State != held || e.left() == 0 {
			continue
		}
		for !mine[e.Owner] && every > max(leastEvery, e.length()/6) {
			every /= 2
		}
		pause = min(pause, e.length()/16) // renewals of its own wait for so long
	}
	pause = min(pause, every/4)
	now := time.Now()
	since := time.Duration(now.UnixNano()) % every
	begin := now.Add(-since).Round(0) // the monotonic clock is read at another moment
	if !p.period.Equal(begin) {
		if p.before = p.tries; begin.Sub(p.period) > every {
			p.before = 0
		}
		p.period, p.tries, p.within = begin, 0, false
	}
	if p.between = since >= pause; p.between {
		p.tries++
		return 0
	}
	// Whoever writes seldom leaves enough room. One that has not succeeded for long writes once during a rest.
	if p.before < int(every/pause) || now.Sub(p.apart) >= lost*every && !p.within {
		return 0
	}
	return pause - since
}
