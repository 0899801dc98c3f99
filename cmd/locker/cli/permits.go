package cli

import (
	"github.com/spf13/cobra"

	"github.com/golocker/locker/cmd/locker/internal/exit"
	"github.com/golocker/locker/semaphore"
)

// permitsVar adds the flag --permits to cmd. 0: the key is one lock.
func permitsVar(cmd *cobra.Command, permits *int, usage string) {
	cmd.Flags().IntVar(permits, "permits", 0, usage)
	_ = cmd.RegisterFlagCompletionFunc("permits", cobra.NoFileCompletions)
}

// checkPermits checks the flag --permits of cmd. The number 0 would mean one lock, which is not what was asked for.
func checkPermits(cmd *cobra.Command, permits int) error {
	if cmd.Flags().Changed("permits") && (permits < 1 || permits > semaphore.MaxPermits) {
		return exit.Usagef("--permits %d: it is from 1 to %d", permits, semaphore.MaxPermits)
	}
	return nil
}

// locksOf returns the names of the locks that key consists of.
func locksOf(key string, permits int) []string {
	if permits > 0 {
		return semaphore.New(nil, permits).Locks(key)
	}
	return []string{key}
}
