package simnode

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"unicode"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
)

// program returns a script, which is compiled when it is called for the first time.
type program func() (*lua.FunctionProto, error)

// programs has the scripts by their digests. All nodes share it.
var programs sync.Map

// load returns a script and the name that a server gives it.
func load(text string) (digest string, p program) {
	sum := sha1.Sum([]byte(text))
	digest = hex.EncodeToString(sum[:])
	loaded, _ := programs.LoadOrStore(digest, program(sync.OnceValues(func() (*lua.FunctionProto, error) {
		chunk, err := parse.Parse(strings.NewReader(text), "script")
		if err != nil {
			return nil, err
		}
		compiled, err := lua.Compile(chunk, "script")
		if err == nil {
			compiled.IsVarArg &^= lua.VarArgNeedsArg // no script uses the table arg, which each call would make
		}
		return compiled, err
	})))
	return digest, loaded.(program)
}

// shipped returns the scripts of the library, by their digests.
var shipped = sync.OnceValue(func() map[string]program {
	all := map[string]program{}
	for _, text := range script.Texts() {
		digest, p := load(text)
		all[digest] = p
	}
	return all
})

// interpreter is what a node runs scripts with, one at a time.
type interpreter struct {
	*lua.LState
	ok      *lua.LTable // the reply OK. No script changes a reply
	words   []string    // of the command that is executed
	matcher matcher
}

func newInterpreter(n *Node) *interpreter {
	l := lua.NewState(lua.Options{
		RegistrySize: 256, RegistryMaxSize: 1 << 16, RegistryGrowStep: 1024, CallStackSize: 32, SkipOpenLibs: true,
	})
	for name, open := range map[string]lua.LGFunction{
		"": lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
	} {
		l.Push(l.NewFunction(open))
		l.Push(lua.LString(name))
		l.Call(1, 0)
	}
	readDecimals(l)
	i := &interpreter{LState: l, ok: field(l, "ok", "OK")}
	ofText := l.GetGlobal(lua.StringLibName).(*lua.LTable)
	ofText.RawSetString("match", l.NewFunction(i.match))
	ofText.RawSetString("format", l.NewFunction(format))
	redis := l.NewTable()
	redis.RawSetString("call", l.NewFunction(func(*lua.LState) int { return i.redisCall(n, true) }))
	redis.RawSetString("pcall", l.NewFunction(func(*lua.LState) int { return i.redisCall(n, false) }))
	redis.RawSetString("error_reply", l.NewFunction(func(l *lua.LState) int {
		l.Push(field(l, "err", l.CheckString(1)))
		return 1
	}))
	l.SetGlobal("redis", redis)
	return i
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

// match is string.match. That of gopher-lua parses the pattern in each call, which takes longer than the rest of a
// script.
func (i *interpreter) match(l *lua.LState) int {
	text, pattern, from := l.CheckString(1), l.CheckString(2), l.OptInt(3, 1)
	captures := i.matcher.find(text, pattern, min(from-1, len(text)))
	if captures == nil {
		l.Push(lua.LNil)
		return 1
	}
	for _, c := range captures {
		l.Push(lua.LString(text[c[0]:c[1]]))
	}
	return len(captures)
}

// format is string.format. That of gopher-lua makes a new format for each number.
func format(l *lua.LState) int {
	text := l.CheckString(1)
	var args []any
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			continue
		}
		i += 1 + strings.IndexFunc(text[i+1:], unicode.IsLetter)
		switch arg := len(args) + 2; text[i] {
		case 'd':
			args = append(args, l.CheckInt64(arg))
		case 'f':
			args = append(args, float64(l.CheckNumber(arg)))
		default:
			args = append(args, l.CheckString(arg))
		}
	}
	l.Push(lua.LString(fmt.Sprintf(text, args...)))
	return 1
}

// field returns a table with one field.
func field(l *lua.LState, name, text string) *lua.LTable {
	t := l.CreateTable(0, 1)
	t.RawSetString(name, lua.LString(text))
	return t
}

func (i *interpreter) redisCall(n *Node, raises bool) int {
	i.words = i.words[:0]
	for at := range i.GetTop() {
		i.words = append(i.words, lua.LVAsString(i.Get(at+1)))
	}
	r := n.command(i.words)
	if e, failed := r.(drivers.ServerError); failed && raises {
		i.RaiseError("%s", string(e))
	}
	i.Push(i.toLua(r))
	return 1
}

func (i *interpreter) toLua(r any) lua.LValue {
	switch r := r.(type) {
	case int64:
		return lua.LNumber(r)
	case string:
		return lua.LString(r)
	case status:
		return i.ok
	case drivers.ServerError:
		return field(i.LState, "err", string(r))
	case []any:
		t := i.CreateTable(len(r), 0)
		for at, x := range r {
			t.RawSetInt(at+1, i.toLua(x))
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

func (i *interpreter) list(words []string) *lua.LTable {
	t := i.CreateTable(len(words), 0)
	for at, w := range words {
		t.RawSetInt(at+1, lua.LString(w))
	}
	return t
}

// eval runs a script.
func (n *Node) eval(p program, keys, args []string) drivers.Reply {
	compiled, err := p()
	if err != nil {
		return drivers.ServerError("ERR Error compiling script " + err.Error())
	}
	if n.lua == nil {
		n.lua = newInterpreter(n)
	}
	l := n.lua
	l.SetGlobal("KEYS", l.list(keys))
	l.SetGlobal("ARGV", l.list(args))
	l.Push(l.NewFunctionFromProto(compiled))
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
