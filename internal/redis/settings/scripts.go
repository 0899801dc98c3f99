package settings

import (
	"fmt"
	"strconv"
	"time"
)

// slowScripts checks that a script of another program cannot stop the server for longer than a lease lasts.
func (j *judge) slowScripts() {
	const check = "slow scripts"
	const promise = "that a held lock is renewed in time"
	within := 5 * time.Second // the server's default
	if ttl := j.use.TTL; ttl > 0 {
		within = min(within, ttl/3) // leases are renewed every third of their TTL
	}
	fix := fmt.Sprintf("CONFIG SET lua-time-limit %d (since Redis 7 it is also called busy-reply-threshold), and "+
		"write it to redis.conf", within.Milliseconds())
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
