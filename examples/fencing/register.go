package main

import (
	"context"
	"errors"
	"sync"
)

// resource is what the lock protects: an account.
type resource interface {
	read(ctx context.Context, token uint64) (balance int, err error)
	write(ctx context.Context, token uint64, balance int) error
	total(ctx context.Context) (balance int, err error) // without a lock, when all is over
}

// errStale refuses a holder if the lock has had another holder since.
var errStale = errors.New("stale token: refused")

// register is an account in memory. It stands for any store that can compare and write in one step, and keeps the
// highest token beside the data. Package fence is such a register in SQL and in Redis.
type register struct {
	rule    rule
	mu      sync.Mutex // makes each step atomic; it does not protect what happens between two steps
	fence   uint64     // the highest token seen
	balance int
}

// rule says what a register does with tokens.
type rule string

const (
	ignores      rule = "ignores tokens"
	checksWrites rule = "checks tokens of writes only"
	fences       rule = "fences on first read"
	inPackage    rule = "is fenced by package fence"
)

// admit refuses a token lower than one that was seen before. The same token again is the same holder.
func (r *register) admit(token uint64) error {
	if token < r.fence {
		return errStale
	}
	r.fence = token
	return nil
}

// read returns the balance. A register that checks tokens remembers the reader's token, so that an earlier holder of
// the lock cannot change the balance that was read.
func (r *register) read(_ context.Context, token uint64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rule == fences {
		if err := r.admit(token); err != nil {
			return 0, err
		}
	}
	return r.balance, nil
}

func (r *register) write(_ context.Context, token uint64, balance int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rule != ignores {
		if err := r.admit(token); err != nil {
			return err
		}
	}
	r.balance = balance
	return nil
}

func (r *register) total(context.Context) (int, error) { return r.balance, nil }
