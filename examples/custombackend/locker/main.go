// Command locker is the command line tool, with one more backend.
//
//	go run ./locker run --url bolt:///tmp/locks.db --key backup -- sleep 10
package main

import (
	_ "example.com/custombackend/boltlock"
	"github.com/golocker/locker/cmd/locker/cli"
)

func main() { cli.Main() }
