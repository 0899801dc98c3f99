package simnode

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/golocker/locker/drivers"
)

// compiled has the scripts that were called, by their text. Nodes of all tests share it.
var compiled sync.Map

func compile(text string) (*lua.FunctionProto, error) {
	if p, ok := compiled.Load(text); ok {
		return p.(*lua.FunctionProto), nil
	}
	chunk, err := parse.Parse(strings.NewReader(text), "script")
	if err != nil {
		return nil, err
	}
	p, err := lua.Compile(chunk, "script")
	if err == nil {
		compiled.Store(text, p)
	}
	return p, err
}

// interpreter returns the Lua state of the node, which has what scripts have on a server. Scripts run one at a time.
func (n *Node) interpreter() *lua.LState {
	if n.lua != nil {
		return n.lua
	}
	l := lua.NewState(lua.Options{RegistrySize: 1024, SkipOpenLibs: true})
	for name, open := range map[string]lua.LGFunction{
		"": lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
	} {
		l.Push(l.NewFunction(open))
		l.Push(lua.LString(name))
		l.Call(1, 0)
	}
	readDecimals(l)
	redis := l.NewTable()
	redis.RawSetString("call", l.NewFunction(func(l *lua.LState) int { return n.redisCall(l, true) }))
	redis.RawSetString("pcall", l.NewFunction(func(l *lua.LState) int { return n.redisCall(l, false) }))
	redis.RawSetString("error_reply", l.NewFunction(func(l *lua.LState) int {
		l.Push(failed(l, l.CheckString(1)))
		return 1
	}))
	l.SetGlobal("redis", redis)
	n.lua = l
	return l
}

// readDecimals makes tonumber and arithmetic read text as Lua does. This interpreter takes text that begins with a zero
// for octal, and counters begin with zeros.
func readDecimals(l *lua.LState) {
	number := func(v lua.LValue) (lua.LNumber, bool) {
		if text, ok := v.(lua.LString); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
			return lua.LNumber(f), err == nil
		}
		f, ok := v.(lua.LNumber)
		return f, ok
	}
	l.SetGlobal("tonumber", l.NewFunction(func(l *lua.LState) int {
		if f, ok := number(l.Get(1)); ok {
			l.Push(f)
		} else {
			l.Push(lua.LNil)
		}
		return 1
	}))
	ofText := l.GetMetatable(lua.LString("")).(*lua.LTable)
	for event, f := range map[string]func(a, b lua.LNumber) lua.LNumber{
		"__add": func(a, b lua.LNumber) lua.LNumber { return a + b },
		"__sub": func(a, b lua.LNumber) lua.LNumber { return a - b },
		"__mul": func(a, b lua.LNumber) lua.LNumber { return a * b },
		"__div": func(a, b lua.LNumber) lua.LNumber { return a / b },
		"__mod": func(a, b lua.LNumber) lua.LNumber {
			return a - lua.LNumber(math.Floor(float64(a/b)))*b // as the manual of Lua 5.1 defines it
		},
	} {
		ofText.RawSetString(event, l.NewFunction(func(l *lua.LState) int {
			a, isNumber := number(l.Get(1))
			b, isNumberToo := number(l.Get(2))
			if !isNumber || !isNumberToo {
				l.RaiseError("attempt to perform arithmetic on a string value")
			}
			l.Push(f(a, b))
			return 1
		}))
	}
}

func failed(l *lua.LState, text string) *lua.LTable {
	t := l.NewTable()
	t.RawSetString("err", lua.LString(text))
	return t
}

func (n *Node) redisCall(l *lua.LState, raises bool) int {
	words := make([]string, l.GetTop())
	for i := range words {
		words[i] = lua.LVAsString(l.Get(i + 1))
	}
	switch r := n.command(words).(type) {
	case drivers.ServerError:
		if raises {
			l.RaiseError("%s", string(r))
		}
		l.Push(failed(l, string(r)))
	default:
		l.Push(toLua(l, r))
	}
	return 1
}

// status is a reply such as OK.
type status string

func toLua(l *lua.LState, r any) lua.LValue {
	switch r := r.(type) {
	case int64:
		return lua.LNumber(r)
	case string:
		return lua.LString(r)
	case status:
		t := l.NewTable()
		t.RawSetString("ok", lua.LString(r))
		return t
	case []any:
		t := l.CreateTable(len(r), 0)
		for i, x := range r {
			t.RawSetInt(i+1, toLua(l, x))
		}
		return t
	}
	return lua.LFalse
}

func fromLua(v lua.LValue) drivers.Reply {
	switch v := v.(type) {
	case lua.LNumber:
		return int64(v)
	case lua.LString:
		return string(v)
	case lua.LBool:
		if v {
			return int64(1)
		}
	case *lua.LTable:
		if e := v.RawGetString("err"); e != lua.LNil {
			return drivers.ServerError(e.String())
		}
		if ok := v.RawGetString("ok"); ok != lua.LNil {
			return ok.String()
		}
		all := []drivers.Reply{}
		for i := 1; ; i++ {
			x := v.RawGetInt(i)
			if x == lua.LNil {
				return all
			}
			all = append(all, fromLua(x))
		}
	}
	return nil
}

// eval runs a script.
func (n *Node) eval(text string, keys, args []string) drivers.Reply {
	p, err := compile(text)
	if err != nil {
		return drivers.ServerError("ERR Error compiling script " + err.Error())
	}
	l := n.interpreter()
	list := func(words []string) *lua.LTable {
		t := l.CreateTable(len(words), 0)
		for i, w := range words {
			t.RawSetInt(i+1, lua.LString(w))
		}
		return t
	}
	l.SetGlobal("KEYS", list(keys))
	l.SetGlobal("ARGV", list(args))
	l.Push(l.NewFunctionFromProto(p))
	if err := l.PCall(0, 1, nil); err != nil {
		l.SetTop(0)
		text := err.Error()
		var e *lua.ApiError
		if errors.As(err, &e) {
			text = e.Object.String()
		}
		if _, after, ok := strings.Cut(text, ": "); ok {
			text = after
		}
		return drivers.ServerError(text)
	}
	v := l.Get(-1)
	l.Pop(1)
	return fromLua(v)
}

var wrongType = drivers.ServerError("WRONGTYPE Operation against a key holding the wrong kind of value")

func (e entry) isString() bool { return e.scores == nil && e.fields == nil }

// ranked returns the members of a sorted set in order.
func (e entry) ranked() []string {
	return slices.SortedFunc(maps.Keys(e.scores), func(a, b string) int {
		return cmp.Or(cmp.Compare(e.scores[a], e.scores[b]), strings.Compare(a, b))
	})
}

func (n *Node) store(key string, e entry) {
	if (e.scores != nil && len(e.scores) == 0) || (e.fields != nil && len(e.fields) == 0) {
		delete(n.keys, key)
		return
	}
	n.keys[key] = e
}

// command executes one of the commands that the scripts use, and notes what it does to locks.
func (n *Node) command(w []string) any {
	r := n.redis(w)
	if n.changes == nil {
		return r
	}
	switch strings.ToUpper(w[0]) {
	case "SET":
		if r == status("OK") {
			n.changes[w[1]] = append(n.changes[w[1]], n.state(w[1]))
		}
	case "DEL":
		for _, key := range w[1:] {
			n.changes[key] = append(n.changes[key], n.state(key))
		}
	}
	return r
}

func (n *Node) redis(w []string) any {
	name := strings.ToUpper(w[0])
	switch name {
	case "TIME":
		us := n.now().Add(n.Skew).UnixMicro()
		return []any{strconv.FormatInt(us/1e6, 10), strconv.FormatInt(us%1e6, 10)}
	case "INFO":
		if n.NoInfo {
			return drivers.ServerError("NOPERM this user has no permissions to run the 'info' command")
		}
		return "# Replication\r\nrole:master\r\nmaster_replid:" + n.incarnation() + "\r\n"
	case "PUBLISH", "SPUBLISH":
		return n.publish(w[1], w[2])
	case "MGET":
		var all []any
		for _, key := range w[1:] {
			if e, ok := n.get(key); ok && e.isString() {
				all = append(all, e.value)
			} else {
				all = append(all, nil)
			}
		}
		return all
	case "MSET":
		for i := 1; i+1 < len(w); i += 2 {
			n.keys[w[i]] = entry{value: w[i+1]}
		}
		return status("OK")
	case "DEL", "EXISTS":
		count := int64(0)
		for _, key := range w[1:] {
			if _, ok := n.get(key); ok {
				count++
				if name == "DEL" {
					delete(n.keys, key)
				}
			}
		}
		return count
	}
	key := w[1]
	e, ok := n.get(key)
	switch name {
	case "SET":
		set := entry{value: w[2]}
		for i := 3; i < len(w); i++ {
			switch strings.ToUpper(w[i]) {
			case "PX":
				ms := number(w[i+1])
				if ms <= 0 {
					return drivers.ServerError("ERR invalid expire time in 'set' command")
				}
				set.expires = n.in(ms)
				i++
			case "NX":
				if ok {
					return nil
				}
			}
		}
		n.keys[key] = set
		return status("OK")
	case "PTTL":
		switch {
		case !ok:
			return int64(-2)
		case e.expires.IsZero():
			return int64(-1)
		}
		return n.left(e)
	case "PEXPIRE":
		if !ok {
			return int64(0)
		}
		e.expires = n.after(w[2])
		n.keys[key] = e
		return int64(1)
	}
	var fits bool
	switch name[0] {
	case 'Z':
		if fits = !ok || e.scores != nil; e.scores == nil {
			e.scores = map[string]int64{}
		}
	case 'H':
		if fits = !ok || e.fields != nil; e.fields == nil {
			e.fields = map[string]string{}
		}
	default:
		fits = !ok || e.isString()
	}
	if !fits {
		return wrongType
	}
	switch name {
	case "GET":
		if !ok {
			return nil
		}
		return e.value
	case "APPEND":
		e.value += w[2]
		n.keys[key] = e
		return int64(len(e.value))
	case "SETRANGE":
		at := int(number(w[2]))
		e.value = e.value[:at] + w[3] + e.value[min(len(e.value), at+len(w[3])):]
		n.keys[key] = e
		return int64(len(e.value))
	case "HGET":
		if v, has := e.fields[w[2]]; has {
			return v
		}
		return nil
	case "HSET":
		_, has := e.fields[w[2]]
		e.fields[w[2]] = w[3]
		n.keys[key] = e
		if has {
			return int64(0)
		}
		return int64(1)
	case "HDEL":
		_, has := e.fields[w[2]]
		delete(e.fields, w[2])
		if ok {
			n.store(key, e)
		}
		if has {
			return int64(1)
		}
		return int64(0)
	case "HLEN":
		return int64(len(e.fields))
	case "HKEYS":
		all := []any{}
		for _, f := range slices.Sorted(maps.Keys(e.fields)) {
			all = append(all, f)
		}
		return all
	case "HSCAN":
		var all []any
		for _, f := range slices.Sorted(maps.Keys(e.fields)) {
			all = append(all, f, e.fields[f])
		}
		return []any{"0", all}
	case "ZADD":
		if w[2] == "NX" {
			w = append(slices.Clone(w[:2]), w[3:]...)
			if _, has := e.scores[w[3]]; has {
				return int64(0)
			}
		}
		e.scores[w[3]] = number(w[2])
		n.keys[key] = e
		return int64(1)
	case "ZREM":
		_, has := e.scores[w[2]]
		delete(e.scores, w[2])
		if ok {
			n.store(key, e)
		}
		if has {
			return int64(1)
		}
		return int64(0)
	case "ZSCORE":
		if s, has := e.scores[w[2]]; has {
			return strconv.FormatInt(s, 10)
		}
		return nil
	case "ZRANK":
		if i := slices.Index(e.ranked(), w[2]); i >= 0 {
			return int64(i)
		}
		return nil
	case "ZPOPMIN":
		order := e.ranked()
		if len(order) == 0 {
			return []any{}
		}
		s := strconv.FormatInt(e.scores[order[0]], 10)
		delete(e.scores, order[0])
		n.store(key, e)
		return []any{order[0], s}
	case "ZRANGE":
		order := e.ranked()
		from, to := int(number(w[2])), int(number(w[3]))
		if from < 0 {
			from = max(0, from+len(order))
		}
		if to < 0 {
			to += len(order)
		}
		all := []any{}
		for i := from; i <= to && i < len(order); i++ {
			all = append(all, order[i])
			if len(w) > 4 {
				all = append(all, strconv.FormatInt(e.scores[order[i]], 10))
			}
		}
		return all
	}
	return drivers.ServerError("ERR unknown command '" + w[0] + "'")
}

// incarnation is the ID of the node's history.
func (n *Node) incarnation() string { return strconv.Itoa(n.restarts) }

// Restart is a restart that keeps all data, but no scripts. With [Node.Flush], it is one that keeps nothing.
func (n *Node) Restart() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.restarts++
	clear(n.scripts)
}

// load makes the node know a script.
func (n *Node) load(text string) {
	sum := sha1.Sum([]byte(text)) // the name that a server gives it
	n.scripts[hex.EncodeToString(sum[:])] = text
}

// script executes a call of a script.
func (n *Node) script(cmd drivers.Command, keys, args []string) drivers.Reply {
	text, known := n.scripts[cmd[1]]
	if cmd[0] == "EVAL" {
		text, known = cmd[1], true
		n.load(text)
	}
	if !known {
		return drivers.ServerError("NOSCRIPT No matching script. Please use EVAL.")
	}
	return n.observed(cmd, keys, func() drivers.Reply { return n.eval(text, keys, args) })
}
