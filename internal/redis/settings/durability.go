package settings

import (
	"fmt"
	"strings"
)

// persistence checks that a restart forgets neither locks nor counters.
func (j *judge) persistence() {
	const check = "persistence"
	const always = "appendfsync always, and write it to redis.conf (each write then waits for the disk)"
	const config = "CONFIG SET " + always
	const file = "CONFIG SET appendonly yes and " + always
	away := "; or use a restart guard (docs/safety.md); or keep it away after a restart for as long as the longest TTL"
	if j.use.TTL > 0 {
		away += fmt.Sprintf(" (%v if that is what all use)", j.use.TTL)
	}
	save, saveKnown := j.Config["save"]
	sync := j.Config["appendfsync"]
	switch aof := j.Info["aof_enabled"] == "1"; {
	case !aof && !saveKnown:
		j.forgets(check, both, file+away,
			"the append-only file is off: a restart forgets locks that are held")
	case !aof && save == "":
		j.forgets(check, both, file+away, "the append-only file is off, and save is empty: a restart forgets all "+
			"locks and counters")
	case !aof:
		j.forgets(check, both, file+away, "the append-only file is off: a restart goes back to the last "+
			"snapshot (save %s), and forgets the locks taken since", save)
	case strings.HasPrefix(j.Info["aof_last_write_status"], "err"):
		j.fail(check, both, "make room on its disk, or replace it; see the server's log",
			"the append-only file cannot be written: aof_last_write_status is %s", j.Info["aof_last_write_status"])
	case sync == "always" && j.Config["no-appendfsync-on-rewrite"] == "yes":
		j.forgets(check, both, "CONFIG SET no-appendfsync-on-rewrite no, and write it to redis.conf"+away,
			"appendfsync is always, but no-appendfsync-on-rewrite is yes: a crash of the machine while the file is "+
				"rewritten forgets the locks taken meanwhile")
	case sync == "always":
		j.ok(check, "the append-only file has every write (appendfsync always)")
	case sync == "everysec":
		j.forgets(check, both, config+away,
			"appendfsync is everysec: a crash of the machine forgets the locks of the last second or two")
	case sync != "":
		j.forgets(check, both, config+away, "appendfsync is %s: a crash of the machine forgets what the kernel has not "+
			"written yet, usually the locks of the last 30 s", sync)
	}
}

// eviction checks that the server does not delete locks, which have an expiry, or counters, which have none.
func (j *judge) eviction() {
	const check = "eviction"
	policy, evicted := j.Info["maxmemory_policy"], j.number("evicted_keys")
	const fix = "CONFIG SET maxmemory-policy noeviction, and write it to redis.conf; or use a server for locks alone"
	what, promise := "locks, because they have an expiry", exclusion
	if strings.HasPrefix(policy, "allkeys-") {
		what, promise = "locks and counters", both
	}
	switch {
	case policy == "": // some services do not tell
		j.warn(check, "", "check CONFIG GET maxmemory-policy: it should be noeviction", "the policy cannot be read")
	case policy == "noeviction":
		j.ok(check, "noeviction")
	case evicted > 0:
		j.fail(check, promise, fix, "%s deletes %s, and %d keys have been evicted: locks may have been among them",
			policy, what, evicted)
	case j.number("maxmemory") > 0:
		j.fail(check, promise, fix, "%s: when its %d bytes of memory are full, it deletes %s", policy,
			j.number("maxmemory"), what)
	default:
		j.warn(check, promise, fix, "%s: without maxmemory it deletes nothing, but as soon as that is set it deletes %s",
			policy, what)
	}
}

// memory warns before maxmemory is reached. With noeviction the server then refuses locks, which breaks no promise.
func (j *judge) memory() {
	used, limit := j.number("used_memory"), j.number("maxmemory")
	if limit > 0 && used > limit/10*9 {
		j.warn("memory", "", "raise maxmemory, or use a server for locks alone",
			"%d of %d bytes are used: when all are, no lock can be taken; locks that are held can still be extended "+
				"and released", used, limit)
	}
}
