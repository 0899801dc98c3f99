// Command locker takes locks for people, scripts and cron jobs, and shows what is behind them.
//
//	locker run --url redis://localhost --key backup --wait 0 -- /usr/local/bin/backup --all
//
// It reads the same URLs, files and variables as a program that uses package config. "locker help" lists the commands,
// docs/cli.md describes them with what they print. For a command that knows another backend or driver as well, see
// package cli.
package main

import (
	// Package cli knows the other stores. With these, the command is a third larger, and so not every program is that
	// uses the package.
	_ "github.com/golocker/locker/backends/dynamodblock"
	_ "github.com/golocker/locker/backends/kuberneteslock"
	_ "github.com/golocker/locker/backends/s3lock"
	"github.com/golocker/locker/cmd/locker/cli"
)

func main() { cli.Main() }
