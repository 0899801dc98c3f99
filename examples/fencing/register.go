package main

import (
	"errors"
	"sync"
)

// errStale refuses a holder if the lock has had another holder since.
var errStale = errors.New("stale token: refused")

// register is the resource that the lock protects: an account. It stands for any store that can compare and write in
// one step, and keeps the highest token beside the data. Package fence is such a register in SQL and in Redis.
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
func (r *register) read(token uint64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rule == fences {
		if err := r.admit(token); err != nil {
			return 0, err
		}
	}
	return r.balance, nil
}

func (r *register) write(token uint64, balance int) error {
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
