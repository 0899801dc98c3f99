package settings

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// replicas checks what happens if a replica takes over.
func (j *judge) replicas() {
	const check = "replicas"
	const safe = "use a restart guard (docs/safety.md); or see to it that none of them is promoted while locks may be " +
		"held that it has not got"
	n, ready, want := j.number("connected_slaves"), j.readyReplicas(), j.use.Replicas
	switch {
	case j.Info["role"] != "master":
		return
	case ready < want:
		j.fail(check, "", "connect more replicas, and wait until they have the master's data; or lower replicas= in the "+
			"configuration",
			"replicas=%d is configured, and %d can confirm a lock: no lock can be taken", want, ready)
		return
	case n == 0:
		return
	case j.use.Redlock:
		j.warn(check, exclusion, "use standalone servers for Redlock; see to it that no replica is promoted",
			"it is a node of a Redlock and has %d replicas: one that takes over may lack the latest locks, and votes "+
				"again", n)
		return
	case want == 0:
		j.forgets(check, exclusion, safe, "it has %d replicas: one that takes over may lack the latest locks", n)
	case int64(want) < n:
		j.forgets(check, exclusion, fmt.Sprintf("raise replicas= to %d; or ", n)+safe,
			"it has %d replicas, and %d of them confirm a lock: one of the others may take over, and lack it", n, want)
	default:
		j.ok(check, "all its replicas confirm a lock (replicas=%d); docs/redis.md says what that leaves open", want)
	}
	j.minimum()
}

// readyReplicas returns how many of the connected replicas receive what the master writes. A replica that is still
// being given the master's data confirms nothing.
func (j *judge) readyReplicas() (n int) {
	for i := range j.number("connected_slaves") {
		// Services that do not list their replicas may still count them.
		state, listed := j.Info[fmt.Sprintf("slave%d", i)]
		if !listed || strings.Contains(state, "state=online") {
			n++
		}
	}
	return n
}

// minimum checks that a master that is cut off from its replicas stops granting.
func (j *judge) minimum() {
	const check = "replicas"
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
