// Package wire tells tests what a command on its way to a server does to locks. It reads the shape of a call of a lock
// script, so that tests that stand between a client and a server need not know the shapes.
package wire

import (
	"slices"
	"strconv"
	"strings"
)

// Step is what a command does to one lock.
type Step struct {
	// Script is the script that is called, without ".lua". A part of a joined command counts as "acquire" or "release",
	// and so does a command of the server that deletes a lock if it has a value.
	Script string
	Lock   string // the key of the lock
	Token  string // the owner's token, or the ID of a turn; empty if there is none
	Joined bool   // it is a part of a joined command; if it is not the usual case, the client calls the script afterwards
}

// Steps returns what a command does, or nil if it does nothing to locks.
func Steps(words []string) []Step {
	if len(words) < 3 {
		return nil
	}
	switch strings.ToUpper(words[0]) {
	case "DELEX", "DELIFEQ":
		value, isLock := ParseValue(words[len(words)-1])
		if !isLock { // a probe, whether the server knows the command
			return nil
		}
		return []Step{{"release", words[1], value.Owner, false}}
	case "EVAL", "EVALSHA":
	default:
		return nil
	}
	n, err := strconv.Atoi(words[2])
	if err != nil || n < 1 || len(words) < 3+n {
		return nil
	}
	keys, args := words[3:3+n], words[3+n:]
	if slices.ContainsFunc(keys, func(k string) bool { return strings.Contains(k, ":lockentries") }) {
		return nil // it is about a group of permits
	}
	if name := script(keys, args); name != "" {
		token := ""
		if len(args) > 0 {
			token = Token(args[0])
		}
		return []Step{{name, keys[0], token, false}}
	}
	if steps := step(keys, args); steps != nil {
		return steps
	}
	return joined(keys, args)
}

// Attempts returns the tokens of the attempts to acquire a lock in a command.
func Attempts(words []string) (tokens []string) {
	for _, s := range Steps(words) {
		if s.Script == "acquire" || s.Script == "enqueue" || s.Script == "step" {
			tokens = append(tokens, s.Token)
		}
	}
	return tokens
}

// Calls reports whether a command calls one of the scripts, also as a part of a joined command.
func Calls(words []string, scripts ...string) bool {
	return slices.ContainsFunc(Steps(words), func(s Step) bool { return slices.Contains(scripts, s.Script) })
}

// Acquires reports whether a command attempts to acquire a lock. A place in a queue counts, a turn does not.
func Acquires(words []string) bool { return Calls(words, "acquire", "enqueue", "step") }

// Releases reports whether a command releases a lock or undoes an attempt.
func Releases(words []string) bool { return Calls(words, "release", "handover", "turnrelease") }

// Token returns the token in a lock's value, or in the part of it that scripts are given. Other words are returned as
// they are.
func Token(word string) string {
	if p := strings.SplitN(word, "|", 3); len(p) == 3 {
		return p[1]
	}
	return word
}

// script returns the name of the script that is called with these keys and arguments, or "" if it is none of those that
// act on one lock.
func script(keys, args []string) string {
	owned := len(args) > 0 && strings.HasPrefix(args[0], "|")
	packed := 0
	if len(args) > 1 {
		packed = strings.Count(args[1], ":")
	}
	last := keys[len(keys)-1]
	switch [2]int{len(keys), len(args)} {
	case [2]int{1, 2}:
		return only(owned, "claim")
	case [2]int{1, 4}, [2]int{2, 4}:
		return only(owned, "export")
	case [2]int{3, 3}:
		return only(owned, "resume") // with a guard
	case [2]int{2, 2}:
		switch {
		case packed > 1:
			return only(owned, "release")
		case packed == 1:
			return only(owned, "claim")
		}
		return only(owned, "raise")
	case [2]int{3, 2}:
		return only(owned, "claim") // of several tokens, with a guard
	case [2]int{2, 1}:
		_, isLock := ParseValue(args[0])
		return only(isLock, "verify")
	case [2]int{2, 3}:
		switch {
		case strings.HasPrefix(args[1], "|"):
			return only(owned, "resume")
		case len(args[1]) == 16: // a token, and no time
			return only(owned, "raise")
		}
		return only(owned, "extend")
	case [2]int{3, 4}, [2]int{4, 3}: // with a guard, a script has another key and sometimes fewer arguments
		return only(owned, "acquire")
	case [2]int{5, 2}:
		switch {
		case !owned:
			return "force"
		case packed > 3:
			return "enqueue"
		}
		return "handover"
	case [2]int{4, 0}:
		return "inspect"
	case [2]int{4, 1}:
		return "force"
	case [2]int{5, 1}:
		if !strings.Contains(args[0], ":") { // the ID of a turn, or nothing
			return "inspect"
		}
		return "force"
	case [2]int{4, 2}:
		switch isTurn := strings.Contains(last, ":lockturn"); {
		case isTurn && owned:
			return "turnrelease"
		case isTurn:
			return "turn"
		case packed >= 3:
			return only(owned, "enqueue")
		}
		return only(owned, "handover")
	}
	return ""
}

func only(owned bool, name string) string {
	if owned {
		return name
	}
	return ""
}

// step returns the acquisitions of one step for several locks; see step.lua.
func step(keys, args []string) (steps []Step) {
	n := len(args) - 2
	if n < 1 || len(keys) < 3*n {
		return nil
	}
	for i, text := range args[2:] {
		if !strings.HasPrefix(text, "|") {
			return nil
		}
		steps = append(steps, Step{"step", keys[i], Token(text), false})
	}
	return steps
}

// joined returns the parts of a joined command; see many.lua.
func joined(keys, args []string) (steps []Step) {
	if len(args) < 2 {
		return nil
	}
	a, err := strconv.Atoi(args[0])
	if err != nil || a < 0 || len(keys) < 3*a || len(args) != 2+len(keys)-a {
		return nil
	}
	for i := range a {
		steps = append(steps, Step{"acquire", keys[i], Token(args[2+a+i]), true})
	}
	locks, values := keys[3*a:], args[2+2*a:]
	if a > 0 && len(values) > 0 && !strings.Contains(values[0], "|") { // a restart guard and its marker
		locks, values = locks[1:], values[1:]
	}
	for i, lock := range locks {
		steps = append(steps, Step{"release", lock, Token(values[i]), true})
	}
	return steps
}
