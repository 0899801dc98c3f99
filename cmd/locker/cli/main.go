// Package cli is the command locker. A program that imports another backend, or another driver, has a command that knows it
// as well, with two lines:
//
//	import _ "example.com/etcdlock" // calls config.Register
//
//	func main() { cli.Main() }
package cli

import (
	"context"
	"os"
)

// Main runs the command with the arguments, the environment and the streams of the process, and ends the process.
// Call it first in main: the command starts its own program again, with an argument of its own, to watch over what it runs.
func Main() {
	if len(os.Args) > 1 && os.Args[1] == guardArg {
		os.Exit(guardMain(os.Args[2:]))
	}
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ()}
	os.Exit(a.main(context.Background(), os.Args[1:]))
}
