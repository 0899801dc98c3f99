package faults

import (
	"crypto/sha1"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/internal/testing/trials/history"
	"github.com/golocker/locker/internal/testing/wire"
)

// call is one script while it runs, or a part of a joined one.
type call struct {
	wire.Step
	// when it began, and when its last command so far had ended, by the server's clock
	from, to time.Duration
	after    sight
	moved    bool // it has changed the lock
}

// scriptNames are the scripts' names by digest and by text. An operator's force is not among them, because it takes
// locks from their owners.
var scriptNames = sync.OnceValue(func() map[string]string {
	names := map[string]string{}
	files, _ := filepath.Glob("../../../script/*.lua")
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".lua"); name != "force" {
			text := source(name)
			sum := sha1.Sum([]byte(text))
			names[text], names[hex.EncodeToString(sum[:])] = name, name
		}
	}
	return names
})

// source reads a script with what it includes.
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

// begin takes the line of a script. Of what is not one of ours it makes no call. Nor does it of a text that cannot be
// read: Valkey 8.1.0 and 8.1.1 do not escape quotes in MONITOR, and comments of scripts have some.
func (w *witness) begin(at time.Duration, args []string) {
	if len(args) < 4 {
		return
	}
	if scriptNames()[args[1]] == "" {
		return
	}
	for _, step := range wire.Steps(args) {
		w.calls = append(w.calls, &call{Step: step, from: at, to: at, after: *w.sight(step.Lock)})
	}
}

// effect is what one command of the script does to its locks.
func (w *witness) effect(name string, args []string) {
	keys := args[:min(1, len(args))]
	if name == "DEL" {
		keys = args
	}
	for _, key := range keys {
		for _, c := range w.calls {
			if c.Lock == key {
				c.effect(name, args[1:])
			}
		}
	}
}

func (c *call) effect(name string, args []string) {
	switch {
	case name == "SET":
		var px int64
		for i := range len(args) - 1 {
			if args[i] == "PX" {
				px, _ = strconv.ParseInt(args[i+1], 10, 64)
			}
		}
		c.after.Owner, c.after.Expires = wire.Token(args[0]), c.to+time.Duration(px)*time.Millisecond
		counter, _, _ := strings.Cut(args[0], "|")
		c.after.Fence, _ = strconv.ParseInt(counter, 10, 64)
		c.after.held, c.moved = true, true
	case name == "SETRANGE" && c.after.held:
		c.after.Fence, _ = strconv.ParseInt(args[1], 10, 64)
		c.moved = true
	case name == "DEL":
		c.after.NodeState = history.NodeState{}
		c.after.held, c.moved = true, true
	case name == "PEXPIRE":
		if c.after.held && (c.after.Owner == "" || c.from >= c.after.Expires+doubt) {
			return // of nothing, it makes nothing
		}
		px, _ := strconv.ParseInt(args[0], 10, 64)
		if !c.after.held {
			c.after.Owner, c.after.Fence = c.Token, 0 // it has looked
		}
		c.after.Expires = c.to + time.Duration(px)*time.Millisecond
		c.after.held, c.moved = true, true
	}
}

// conclude has the last script judged, when the next command shows that it has ended.
func (w *witness) conclude() {
	for _, c := range w.calls {
		w.judge(c)
	}
	w.calls = nil
}

func (w *witness) judge(c *call) {
	known := w.sight(c.Lock)
	before, after := *known, c.after
	if before.held && before.Owner != "" {
		switch {
		case c.from >= before.Expires+doubt:
			before.NodeState = history.NodeState{}
		case c.to > before.Expires-doubt:
			before.held = false // ended or not
		}
	}
	if c.moved {
		known.held, known.NodeState = true, after.NodeState
	} else {
		after.held, after.NodeState = before.held, before.NodeState
	}
	fresh := c.moved && after.Owner != "" && after.Owner != before.Owner && !strings.HasPrefix(after.Owner, "hold:")
	if fresh && before.held {
		w.grants++
	}
	// What is not known is as it should be.
	if !before.held {
		if !c.moved {
			after.NodeState = history.NodeState{Owner: c.Token}
		}
		before.NodeState = after.NodeState
	}
	if before.Owner == after.Owner && after.Expires < before.Expires && before.Expires-after.Expires < doubt {
		after.Expires = before.Expires
	}
	w.log.Add(history.NodeStep{
		Node: w.node, Life: known.life, At: c.from, Script: c.Script, Lock: c.Lock, Owner: c.Token,
		Before: before.NodeState, After: after.NodeState,
	})
}
