package node

import (
	"crypto/sha1"
	_ "embed" // for the scripts
	"encoding/hex"
	"strconv"
	"time"

	"github.com/golocker/locker/drivers"
)

// The lock protocol, as scripts: each step is one atomic command, whatever the client under it. They answer with
// integers, strings and arrays of them only, which every client renders alike.
var (
	//go:embed acquire.lua
	acquireSource string
	//go:embed raise.lua
	raiseSource string
	//go:embed extend.lua
	extendSource string

	//go:embed undo.lua
	undoSource string // a part of all that release
	//go:embed release.lua
	releaseSource string

	//go:embed queue.lua
	queueSource string // a part of all that know waiters
	//go:embed enqueue.lua
	enqueueSource string
	//go:embed claim.lua
	claimSource string
	//go:embed handover.lua
	handoverSource string

	//go:embed turn.lua
	turnSource string
	//go:embed leaveturn.lua
	leaveTurnSource string
	//go:embed turnrelease.lua
	turnReleaseSource string

	acquireScript = newScript(acquireSource)
	raiseScript   = newScript(raiseSource)
	extendScript  = newScript(extendSource)
	releaseScript = newScript(undoSource + releaseSource)

	// The queue for one node's lock, which is handed on from one waiter to the next.
	enqueueScript  = newScript(queueSource + enqueueSource)
	claimScript    = newScript(queueSource + claimSource)
	handoverScript = newScript(queueSource + undoSource + handoverSource)

	// The queue for Redlock, on one of its nodes, for the turn to ask them all.
	turnScript        = newScript(queueSource + turnSource)
	leaveTurnScript   = newScript(queueSource + leaveTurnSource)
	turnReleaseScript = newScript(queueSource + undoSource + turnReleaseSource)
)

// Constants of the protocol, which every client of a lock has to agree on. queue.lua has them as numbers; a test compares.
const (
	// claimWindow is for how long a lock is granted to a waiter that was told, and has to come for the rest of its TTL.
	claimWindow = 2 * time.Second
	// maxLease is how long a waiter keeps its place without a heartbeat, at most.
	maxLease = 6 * time.Second
)

type script struct {
	source, sha string
}

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source)) // the name Redis gives a script, not a protection
	return &script{source, hex.EncodeToString(sum[:])}
}

// command calls the script by its digest, which the server answers with NOSCRIPT if it does not know it (yet, or any
// more after a restart or SCRIPT FLUSH); see [full].
func (s *script) command(keys []string, args ...string) drivers.Command {
	cmd := make(drivers.Command, 0, 3+len(keys)+len(args))
	cmd = append(cmd, "EVALSHA", s.sha, strconv.Itoa(len(keys)))
	cmd = append(cmd, keys...)
	return append(cmd, args...)
}

// full returns the same call with the source in place of the digest, which also teaches it to the server.
func (s *script) full(cmd drivers.Command) drivers.Command {
	c := append(drivers.Command(nil), cmd...)
	c[0], c[1] = "EVAL", s.source
	return c
}
