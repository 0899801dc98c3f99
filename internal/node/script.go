package node

import (
	"crypto/sha1"
	_ "embed" // for the scripts
	"encoding/hex"
	"strconv"

	"github.com/golocker/locker/drivers"
)

// The lock protocol, as scripts: each step is one atomic command, whatever the client under it. They answer with
// integers and arrays of integers only, which every client renders alike.
var (
	//go:embed acquire.lua
	acquireSource string
	//go:embed raise.lua
	raiseSource string
	//go:embed extend.lua
	extendSource string
	//go:embed release.lua
	releaseSource string

	acquireScript = newScript(acquireSource)
	raiseScript   = newScript(raiseSource)
	extendScript  = newScript(extendSource)
	releaseScript = newScript(releaseSource)
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
