package settings

import (
	"strconv"
	"time"
)

// slowScripts checks that a script of another program cannot stop the server for longer than a lease lasts.
func (j *judge) slowScripts() {
	const check = "slow scripts"
	const promise = "that a held lock is renewed in time"
	const fix = "CONFIG SET lua-time-limit 5000 (since Redis 7 it is also called busy-reply-threshold), and write it " +
		"to redis.conf"
	ms, err := strconv.ParseInt(j.Config["lua-time-limit"], 10, 64)
	limit := time.Duration(ms) * time.Millisecond
	switch {
	case err != nil:
	case ms <= 0:
		j.warn(check, promise, fix, "lua-time-limit is %d: while a slow script runs, the server answers nobody, and "+
			"SCRIPT KILL cannot end it", ms)
	case j.use.TTL > 0 && limit >= j.use.TTL:
		j.warn(check, promise, fix+"; or use a longer TTL",
			"lua-time-limit is %v: while a slow script runs, the server answers nobody for that long, and leases of %v "+
				"end", limit, j.use.TTL)
	}
}
