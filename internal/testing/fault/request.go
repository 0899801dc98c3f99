package fault

import (
	"fmt"
	"strings"
)

// Request is one command on its way to the server.
type Request struct {
	Conn int      // number of the client's connection, from 1, in the order in which they were accepted
	N    int      // number of the request over all connections, from 1
	Args []string // the command and its arguments, which must not be modified
}

// Name returns the command's name in upper case.
func (r Request) Name() string { return strings.ToUpper(r.Args[0]) }

// Is reports whether the command is one of names, in any case.
func (r Request) Is(names ...string) bool {
	for _, name := range names {
		if strings.EqualFold(r.Args[0], name) {
			return true
		}
	}
	return false
}

// String returns the request as failure messages show it. Long arguments, such as the text of a script, are shortened.
func (r Request) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "#%d conn %d:", r.N, r.Conn)
	for _, arg := range r.Args {
		if len(arg) > 40 {
			arg = arg[:40] + "..."
		}
		fmt.Fprintf(&b, " %q", arg)
	}
	return b.String()
}
