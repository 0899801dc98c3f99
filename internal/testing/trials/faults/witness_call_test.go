package faults

import (
	"crypto/sha1"
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/internal/testing/trials/history"
)

// call is one script that is being executed.
type call struct {
	script, lock, owner string
	// from and to are the beginning and the end of the last command so far, on the server's clock.
	from, to      time.Duration
	after         sight
	moved, raised bool // the script has changed the lock, or the counter
}

// scriptNames has the names of the scripts, by digest and by text.
var scriptNames = sync.OnceValue(func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{"acquire", "claim", "enqueue", "extend", "handover", "raise", "release", "turn",
		"turnrelease"} {
		text := source(name)
		sum := sha1.Sum([]byte(text))
		names[text], names[hex.EncodeToString(sum[:])] = name, name
	}
	return names
})

// source reads a script with the files that it includes.
func source(name string) string {
	text, err := os.ReadFile("../../../script/" + name + ".lua")
	if err != nil {
		panic(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if part, ok := strings.CutPrefix(line, "-- include "); ok {
			line = source(strings.TrimSuffix(strings.TrimSpace(part), ".lua"))
		}
		b.WriteString(line)
	}
	return b.String()
}

// begin reads the line of a script. It makes no call of a script of another program, or of a text that cannot be
// parsed. Valkey 8.1.0 and 8.1.1 do not escape quotes in MONITOR, and comments of scripts have quotes.
func (w *witness) begin(at time.Duration, args []string) {
	if len(args) < 4 {
		return
	}
	n, _ := strconv.Atoi(args[2])
	name := scriptNames()[args[1]]
	if name == "" || n < 1 || len(args) <= 3+n {
		return
	}
	c := &call{script: name, lock: args[3], owner: args[3+n], from: at, to: at}
	switch name {
	case "claim":
		_, c.owner, _ = strings.Cut(c.owner, ":")
	case "turnrelease":
		c.owner, _, _ = strings.Cut(c.owner, ":")
	}
	c.after = *w.sight(c.lock)
	w.call = c
}

// effect records what one command of the script does to its lock.
func (w *witness) effect(name string, args []string) {
	c := w.call
	if len(args) == 0 {
		return
	}
	lock, counter := fenceOf(args[0])
	switch {
	case counter && lock == c.lock && name == "SET":
		c.after.Fence, _ = strconv.ParseInt(args[1], 10, 64)
		c.after.counted, c.raised = true, true
	case args[0] != c.lock:
	case name == "SET":
		var px int64
		for i := range len(args) - 1 {
			if args[i] == "PX" {
				px, _ = strconv.ParseInt(args[i+1], 10, 64)
			}
		}
		c.after.Owner, c.after.Expires = args[1], c.to+time.Duration(px)*time.Millisecond
		c.after.held, c.moved = true, true
	case name == "DEL":
		c.after.Owner, c.after.Expires = "", 0
		c.after.held, c.moved = true, true
	case name == "PEXPIRE":
		if c.after.held && (c.after.Owner == "" || c.from >= c.after.Expires+doubt) {
			return // the key does not exist, so the command has no effect
		}
		px, _ := strconv.ParseInt(args[1], 10, 64)
		if !c.after.held {
			c.after.Owner = c.owner // the script has compared the owner
		}
		c.after.Expires = c.to + time.Duration(px)*time.Millisecond
		c.after.held, c.moved = true, true
	}
}

// conclude judges the last script. It is called when the next command shows that the script has ended.
func (w *witness) conclude() {
	c := w.call
	w.call = nil
	if c == nil {
		return
	}
	known := w.sight(c.lock)
	before, after := *known, c.after
	if before.held && before.Owner != "" {
		switch {
		case c.from >= before.Expires+doubt:
			before.Owner, before.Expires = "", 0
		case c.to > before.Expires-doubt:
			before.held = false // it is not known whether the lock has expired
		}
	}
	if !c.moved {
		after.held, after.Owner, after.Expires = before.held, before.Owner, before.Expires
	}
	if c.moved {
		known.held, known.Owner, known.Expires = true, after.Owner, after.Expires
	}
	if c.raised {
		known.counted, known.Fence = true, after.Fence
	}
	fresh := c.moved && after.Owner != "" && after.Owner != before.Owner && !strings.HasPrefix(after.Owner, "hold:")
	if fresh && before.held {
		w.grants++
	}
	// If the state is not known, it counts as correct.
	if !before.held {
		if !c.moved {
			after.Owner = c.owner
		}
		before.Owner, before.Expires = after.Owner, after.Expires
	}
	if !before.counted && c.raised {
		before.Fence = after.Fence - 1
	}
	if before.Owner == after.Owner && after.Expires < before.Expires && before.Expires-after.Expires < doubt {
		after.Expires = before.Expires
	}
	w.log.Add(history.NodeStep{
		Node: w.node, Life: known.life, At: c.from, Script: c.script, Lock: c.lock, Owner: c.owner,
		Before: before.NodeState, After: after.NodeState,
	})
}
