// Package cli is the command locker. To build a command that supports another backend or driver, import it in a program
// of two lines:
//
//	import _ "example.com/etcdlock" // calls config.Register
//
//	func main() { cli.Main() }
package cli

import (
	"context"
	"os"

	"github.com/golocker/locker/cmd/locker/internal/supervise"
)

// Main runs the command with the arguments, the environment and the streams of the process, and ends the process. Call
// it first in main: "locker run" starts the same program again, with a special argument, as the guard of its command.
func Main() {
	supervise.Main(os.Args)
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ()}
	os.Exit(a.main(context.Background(), os.Args[1:]))
}
