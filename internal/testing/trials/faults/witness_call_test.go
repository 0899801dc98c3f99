package faults

import (
	"crypto/sha1"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/internal/testing/trials/history"
	"github.com/golocker/locker/internal/testing/wire"
)

// call is one script while it runs.
type call struct {
	// when it began, and when its last command so far had ended, by the server's clock
	from, to time.Duration
	steps    []*step // what it does to locks: more than one if commands are joined
}

// step is what a call does to one lock.
type step struct {
	wire.Step
	after sight
	moved bool // the lock has changed
	slot  slot // the counter of its slot when it changed last: the counter comes first
	waits bool // somebody has come into the lock's queue
}

// scriptNames are the scripts' names by digest and by text.
var scriptNames = sync.OnceValue(func() map[string]string {
	files, _ := filepath.Glob("../../../redis/script/*.lua")
	names := map[string]string{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".lua")
		if name == "force" || name == "inspect" { // they are for operators
			continue
		}
		text := source(name)
		sum := sha1.Sum([]byte(text))
		names[text], names[hex.EncodeToString(sum[:])] = name, name
	}
	return names
})

// source reads a script with what it includes.
func source(name string) string {
	text, err := os.ReadFile("../../../redis/script/" + name + ".lua")
	if err != nil {
		panic(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "-- if guarded: ") {
			continue // the clients of the trial have no guard
		}
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
	if len(args) < 4 || scriptNames()[args[1]] == "" {
		return
	}
	steps := wire.Steps(args)
	if len(steps) == 0 {
		return
	}
	w.call = &call{from: at, to: at}
	for _, s := range steps {
		w.call.steps = append(w.call.steps, &step{Step: s, after: *w.sight(s.Lock)})
	}
}

// deletes takes the line of a command of the server that deletes a lock if it has a value. Of a lock that is not known,
// it is not known whether it was deleted.
func (w *witness) deletes(at time.Duration, args []string) {
	for _, s := range wire.Steps(args) {
		if known := w.sight(s.Lock); known.held && known.value == args[len(args)-1] {
			w.call = &call{at, at, []*step{{Step: s, after: *known}}}
			w.effect("DEL", []string{s.Lock})
		}
	}
}

// effect is what one command of a script does.
func (w *witness) effect(name string, args []string) {
	switch {
	case len(args) == 0:
	case name == "MSET":
		for pair := range slices.Chunk(args, 2) {
			w.effect("SET", pair)
		}
	case name == "DEL" && len(args) > 1:
		for i := range args {
			w.effect("DEL", args[i:i+1])
		}
	case name == "SET" && isCounter(args[0]):
		w.slot(args[0]).set(args[1])
	default:
		for _, s := range w.call.steps {
			if s.Joined {
				w.joined(s, name, args)
			} else if w.call.change(s, name, args) {
				s.slot = *w.slot(counterOf(s.Lock))
			}
		}
	}
}

// joined is what one command of the script of joined commands does. The script acts on one lock after the other, and
// the same lock may be there more than once.
func (w *witness) joined(s *step, name string, args []string) {
	known := w.sight(s.Lock)
	switch {
	case args[0] != s.Lock, s.moved:
		return
	case name == "SET":
		if s.Script != "acquire" || wire.Token(args[1]) != s.Token {
			return
		}
	case s.Script == "acquire", s.Token != known.Owner && w.call.releases(s.Lock, known.Owner):
		return
	}
	s.after = *known
	if w.call.change(s, name, args) {
		s.slot = *w.slot(counterOf(s.Lock))
		w.judge(w.call, s)
	}
}

// releases reports whether one of several joined commands is the release of the lock by its owner.
func (c *call) releases(lock, owner string) bool {
	return slices.ContainsFunc(c.steps, func(s *step) bool {
		return s.Script == "release" && s.Lock == lock && s.Token == owner
	})
}

// change is what one command of a script does to its lock, and whether it changes the lock.
func (c *call) change(s *step, name string, args []string) bool {
	if strings.Contains(args[0], ":lockqueue") {
		s.waits = name == "ZADD" || s.waits && name != "ZREM" && name != "ZPOPMIN"
	}
	if args[0] != s.Lock {
		return false
	}
	a := &s.after
	free := a.held && (a.Owner == "" || c.from >= a.Expires+doubt)
	switch name {
	case "SET":
		if s.Joined && slices.Contains(args, "NX") && a.held && a.Owner != "" && c.to < a.Expires-doubt {
			return false // the same command has acquired it before
		}
		a.is(args[1], c.to+life(args))
	case "DEL":
		a.is("", 0)
	case "PEXPIRE":
		if free {
			return false // of nothing, it makes nothing
		}
		if !a.held {
			a.Owner = s.Token // it has looked
		}
		a.held, a.Expires = true, c.to+ms(args[1])
	case "APPEND":
		if a.value == "" {
			return false // it is not known
		}
		a.is(a.value+args[1], a.Expires)
	case "SETRANGE":
		if len(a.value) < len(args[2]) {
			return false // it is not known
		}
		a.is(args[2]+a.value[len(args[2]):], a.Expires)
	default:
		return false
	}
	s.moved = true
	return true
}

// life is what a SET gives.
func life(args []string) time.Duration {
	if i := slices.Index(args, "PX"); i > 0 && i+1 < len(args) {
		return ms(args[i+1])
	}
	return 0
}

func ms(text string) time.Duration {
	n, _ := strconv.ParseInt(text, 10, 64)
	return time.Duration(n) * time.Millisecond
}

// conclude has the last script judged, when the next command shows that it has ended.
func (w *witness) conclude() {
	c := w.call
	w.call = nil
	if c == nil {
		return
	}
	for _, s := range c.steps {
		if !s.Joined {
			w.judge(c, s)
		}
	}
}

func (w *witness) judge(c *call, s *step) {
	known := w.sight(s.Lock)
	before, after := *known, s.after
	if before.held && before.Owner != "" {
		switch {
		case c.from >= before.Expires+doubt:
			before.is("", 0)
		case c.to > before.Expires-doubt:
			before.held = false // ended or not
		}
	}
	if s.moved {
		*known = after
	} else {
		after = before
	}
	fresh := s.moved && after.Owner != "" && after.Owner != before.Owner && !strings.HasPrefix(after.Owner, "hold:")
	if fresh && before.held {
		w.grants++
	}
	after.Waits = s.waits && (s.moved || before.held) // only a lock that exists is marked
	if !before.held {
		before = after // what is not known is as it should be
	}
	if before.Owner == after.Owner && after.Expires < before.Expires && before.Expires-after.Expires < doubt {
		after.Expires = before.Expires
	}
	n := history.NodeStep{
		Node: w.node, At: c.from, Script: s.Script, Lock: s.Lock, Owner: s.Token,
		Before: before.NodeState, After: after.NodeState,
	}
	counter := counterOf(s.Lock)
	slot := *w.slot(counter)
	if s.moved {
		slot = s.slot
	}
	if n.Life = slot.life; slot.known { // the log knows what it was before
		n.Counter, n.Before.Slot, n.After.Slot = counter, slot.value, slot.value
	}
	w.log.Add(n)
}
