package cli

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/golocker/locker"
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

// locksOf returns the names of the locks in l that key consists of, or that of its group of permits.
func locksOf(l locker.Locker, key string, permits int) []string {
	if permits > 0 {
		return semaphore.New(l, permits).Locks(key)
	}
	return []string{key}
}

// numbers renders the numbers of permits, as "0–9, 15".
func numbers(of []int) string {
	var parts []string
	for i := 0; i < len(of); {
		j := i
		for j+1 < len(of) && of[j+1] == of[j]+1 {
			j++
		}
		part := strconv.Itoa(of[i])
		if j > i {
			part += "–" + strconv.Itoa(of[j])
		}
		parts, i = append(parts, part), j+1
	}
	return strings.Join(parts, ", ")
}
