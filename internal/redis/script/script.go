// Package script defines what a lock is on a Redis server: the Lua scripts, the names of keys and channels, how a
// script is called, and what its replies mean. It sends nothing, and knows neither clients nor callers.
package script

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/drivers"
)

// Command is one command, mostly a call of a script.
type Command struct {
	// Words are empty if Usual is not nil. [Usual.Alone] then makes the words of the command itself.
	Words drivers.Command
	// Source is the text of the script that Words call by its digest. A server that does not know the script answers
	// NOSCRIPT and executes nothing. Words are then sent again, with Source in place of the digest. Source is empty if
	// Words call no script.
	Source string
	// IsRelease says that the command may free something that others wait for, so that it must not be held back.
	IsRelease bool
	// Grants, if not nil, reports whether a reply to the command, or to its usual case, grants or prolongs a lock.
	Grants func(drivers.Reply) bool
	// Usual is what the command does in the usual case, which it can share with others; see [Join]. If it is nil, the
	// command is always sent by itself.
	Usual *Usual
}

// The lock protocol. Each step is one script, so it is atomic whatever the client. Replies are integers, strings, and
// arrays of them, which all clients return in the same form.
//
//go:embed *.lua
var sources embed.FS

var (
	acquireScript = newScripts("acquire.lua")
	raiseScript   = newScript("raise.lua")
	extendScript  = newScript("extend.lua")
	verifyScript  = newScript("verify.lua")
	releaseScript = newRelease("release.lua")

	// The queue for the lock of one node. A release grants the lock to the first waiter.
	enqueueScript  = newScripts("enqueue.lua")
	claimScript    = newScripts("claim.lua")
	handoverScript = newScripts("handover.lua").releases()

	// The queue for a Redlock, which one of its nodes keeps. It is a queue for the turn to ask all nodes.
	turnScript        = newScript("turn.lua")
	turnReleaseScript = newRelease("turnrelease.lua")

	// The usual case of many commands at once.
	manyScript = newScripts("many.lua")

	// Some of several locks for one owner, or none.
	stepScript = newScripts("step.lua")

	// A lock that is passed on to another process.
	exportScript = newScript("export.lua")
	resumeScript = newScripts("resume.lua")

	// Entries of a group.
	groupQueueScript   = newScripts("groupqueue.lua")
	groupClaimScript   = newScripts("groupclaim.lua")
	groupExtendScript  = newScript("groupextend.lua")
	groupReleaseScript = newScripts("grouprelease.lua").releases()
	groupForceScript   = newScripts("groupforce.lua")
	groupInspectScript = newScript("groupinspect.lua")

	// For operators.
	inspectScript      = newScript("inspect.lua")
	forceScript        = newScripts("force.lua")
	raiseCounterScript = newScript("raisecounter.lua")
	scanScript         = newScript("scan.lua")

	// The restart guard.
	touchScript = newScript("touch.lua")
)

// Constants of the protocol. All clients of a lock must agree on them. The scripts contain the same numbers, and a test
// compares them.
const (
	// ClaimWindow is how long a lock is granted to a waiter by somebody else's release. Within that time, the waiter
	// has to claim it for the rest of its TTL.
	ClaimWindow = 2 * time.Second
	// MaxPositionTTL is the longest time for which the server keeps a waiter's position without a heartbeat.
	MaxPositionTTL = 6 * time.Second
)

// script is composed from its files when it is first used. Programs that do not need it, as each command of the command
// line but a few, begin sooner.
type script struct {
	name      string
	guarded   bool
	isRelease bool // it may free a lock that others wait for

	compose     sync.Once
	source, sha string
}

// all has all scripts.
var all []*script

// Texts returns the scripts, for a server that is to know them before they are called.
func Texts() []string {
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i], _ = s.text()
	}
	return texts
}

func newScript(name string) *script { return add(name, false) }

func add(name string, guarded bool) *script {
	s := &script{name: name, guarded: guarded}
	all = append(all, s)
	return s
}

// text returns the script, and the name that Redis gives it, which is its digest.
func (s *script) text() (source, sha string) {
	s.compose.Do(func() {
		s.source = expand(s.name, s.guarded)
		sum := sha1.Sum([]byte(s.source)) // not a protection
		s.sha = hex.EncodeToString(sum[:])
	})
	return s.source, s.sha
}

func newRelease(name string) *script {
	s := newScript(name)
	s.isRelease = true
	return s
}

// scripts are a script that grants locks, for clients with and without a restart guard.
type scripts struct{ plain, guarded *script }

func newScripts(name string) scripts { return scripts{add(name, false), add(name, true)} }

func (s scripts) releases() scripts {
	s.plain.isRelease, s.guarded.isRelease = true, true
	return s
}

// of returns the script for clients with the guard g.
func (s scripts) of(g *Guard) *script {
	if g == nil {
		return s.plain
	}
	return s.guarded
}

// forGuarded begins a line that only scripts with a guard have.
const forGuarded = "-- if guarded: "

// expand reads a script and replaces its lines "-- include NAME" with the scripts of these names. It panics if a script
// does not exist, because scripts are part of the program.
func expand(name string, guarded bool) string {
	text, err := sources.ReadFile(name)
	if err != nil {
		panic(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if indent, part, ok := strings.Cut(line, forGuarded); ok {
			if !guarded {
				continue
			}
			line = indent + part
		}
		if part, ok := strings.CutPrefix(line, "-- include "); ok {
			line = expand(strings.TrimSpace(part), guarded)
		}
		b.WriteString(line)
	}
	return b.String()
}

// call returns a call of the script by its digest. The server answers NOSCRIPT if it does not know the script: before
// the first call with its text, after a restart, and after SCRIPT FLUSH.
func (s *script) call(keys []string, args ...string) Command {
	source, sha := s.text()
	words := make(drivers.Command, 0, 3+len(keys)+len(args))
	words = append(words, "EVALSHA", sha, strconv.Itoa(len(keys)))
	words = append(words, keys...)
	return Command{Words: append(words, args...), Source: source, IsRelease: s.isRelease}
}
