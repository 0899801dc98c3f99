// Package script is what a lock is on a Redis server: the Lua scripts, the names of keys and channels, how a script is
// called and what its replies say. It sends nothing, and knows neither clients nor callers.
package script

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
)

// Command is a call of a script.
type Command struct {
	Words     drivers.Command // by the script's digest
	Source    string          // the script's text, for a server that does not know it
	IsRelease bool            // somebody may wait for what it frees
}

// The lock protocol, as scripts: each step is one atomic command, whatever the client under it. They answer with
// integers, strings and arrays of them only, which every client renders alike.
//
//go:embed *.lua
var sources embed.FS

var (
	acquireScript = newScript("acquire.lua")
	raiseScript   = newScript("raise.lua")
	extendScript  = newScript("extend.lua")
	releaseScript = newRelease("release.lua")

	// The queue for one node's lock, which is handed on from one waiter to the next.
	enqueueScript  = newScript("enqueue.lua")
	claimScript    = newScript("claim.lua")
	handoverScript = newRelease("handover.lua")

	// The queue for Redlock, on one of its nodes, for the turn to ask them all.
	turnScript        = newScript("turn.lua")
	turnReleaseScript = newRelease("turnrelease.lua")

	// For operators.
	inspectScript = newScript("inspect.lua")
	forceScript   = newScript("force.lua")
)

// Constants of the protocol, which every client of a lock has to agree on. The scripts have them as numbers; a test
// compares.
const (
	// ClaimWindow is for how long a lock is granted to a waiter that was told, and has to come for the rest of its TTL.
	ClaimWindow = 2 * time.Second
	// MaxLease is how long a waiter keeps its place without a heartbeat, at most.
	MaxLease = 6 * time.Second
	// counterKeep is how long a fencing counter outlives the last use of its lock. A counter that has expired starts
	// anew from the server's clock, so it must outlive any step back of that clock: a day covers a machine that booted
	// with the wrong time zone. See docs/adr/0003-fencing-counter.md.
	counterKeep = 24 * time.Hour
)

type script struct {
	source, sha string
	isRelease   bool // somebody may wait for what it frees
}

func newScript(name string) *script {
	source := expand(name)
	sum := sha1.Sum([]byte(source)) // the name Redis gives a script, not a protection
	return &script{source: source, sha: hex.EncodeToString(sum[:])}
}

func newRelease(name string) *script {
	s := newScript(name)
	s.isRelease = true
	return s
}

// expand reads a script and puts others in the places of its lines "-- include NAME". It panics if one does not exist:
// they are part of the program.
func expand(name string) string {
	text, err := sources.ReadFile(name)
	if err != nil {
		panic(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if part, ok := strings.CutPrefix(line, "-- include "); ok {
			line = expand(strings.TrimSpace(part))
		}
		b.WriteString(line)
	}
	return b.String()
}

// call calls the script by its digest. The server answers with NOSCRIPT if it does not know it (yet, or any more after
// a restart or SCRIPT FLUSH).
func (s *script) call(keys []string, args ...string) Command {
	words := make(drivers.Command, 0, 3+len(keys)+len(args))
	words = append(words, "EVALSHA", s.sha, strconv.Itoa(len(keys)))
	words = append(words, keys...)
	return Command{Words: append(words, args...), Source: s.source, IsRelease: s.isRelease}
}
