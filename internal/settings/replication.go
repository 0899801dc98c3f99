package settings

import (
	"strconv"
	"time"
)

// replicas checks what happens if a replica takes over.
func (j *judge) replicas() {
	const check = "replicas"
	n := j.Info["connected_slaves"]
	if j.Info["role"] != "master" || j.number("connected_slaves") == 0 {
		return
	}
	if j.use.Redlock {
		j.warn(check, exclusion, "use standalone servers for Redlock; see to it that no replica is promoted",
			"it is a node of a Redlock and has %s replicas: one that takes over may lack the latest locks, and votes "+
				"again", n)
		return
	}
	j.forgets(check, exclusion, "use a restart guard (docs/safety.md); or see to it that none of them is promoted while "+
		"locks may be held that it has not got",
		"it has %s replicas: one that takes over may lack the latest locks", n)
	lag, err := strconv.Atoi(j.Config["min-replicas-max-lag"])
	reserve := j.use.Guard/50 + 2*time.Second // by which the guard is longer than the TTL
	if j.Config["min-replicas-to-write"] == "0" {
		j.warn(check, exclusion, "CONFIG SET min-replicas-to-write 1, and write it to redis.conf (without a replica, it "+
			"then takes no locks)",
			"min-replicas-to-write is 0: a master that is cut off from its replicas goes on granting beside the one "+
				"that takes over")
	} else if err == nil && j.use.Guard > 0 && time.Duration(lag)*time.Second > reserve {
		j.warn(check, exclusion, "CONFIG SET min-replicas-max-lag 2, and write it to redis.conf",
			"min-replicas-max-lag is %d: a master that is cut off goes on granting for so many seconds, and the restart "+
				"guard allows for %v", lag, reserve)
	}
}

// writableReplica looks at a setting that has an effect only after a master has become a replica.
func (j *judge) writableReplica() {
	if j.Config["replica-read-only"] == "no" {
		j.warn("replicas", exclusion, "CONFIG SET replica-read-only yes, and write it to redis.conf",
			"replica-read-only is no: as a replica, it grants locks that its master grants, too")
	}
}
