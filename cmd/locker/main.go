// Command locker takes locks for people, scripts and cron jobs, and shows what is behind them.
//
//	locker run --url redis://localhost --key backup --wait 0 -- /usr/local/bin/backup --all
//
// It reads the same URLs, files and variables as a program that uses package config. "locker help" lists the commands,
// docs/cli.md describes them with what they print.
package main

import (
	"context"
	"os"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == guardArg {
		os.Exit(guardMain(os.Args[2:]))
	}
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ()}
	os.Exit(a.main(context.Background(), os.Args[1:]))
}
