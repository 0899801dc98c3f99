package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/fence"
)

// balanceKey has the hash tag of the fence, which is the resource's name.
const balanceKey = "{" + key + "}:balance"

// account is an account in a Redis, whose fence is kept by package fence.
type account struct {
	drivers.Driver
	fences fence.Redis
}

// openAccount opens the account at the address, with a balance that replaces what was there.
func openAccount(ctx context.Context, addr string, balance int) (*account, error) {
	d, err := drivers.Open(ctx, "", drivers.Config{Addr: addr})
	if err != nil {
		return nil, err
	}
	a := &account{d, fence.Redis{Driver: d}}
	if _, err := a.do(ctx, "SET", balanceKey, strconv.Itoa(balance)); err != nil {
		_ = d.Close()
		return nil, err
	}
	return a, nil
}

func (a *account) read(ctx context.Context, token uint64) (int, error) {
	if err := a.fences.Enter(ctx, fence.Hold{Resource: key, Token: token}); err != nil {
		return 0, err
	}
	return a.total(ctx)
}

func (a *account) write(ctx context.Context, token uint64, balance int) error {
	holds := []fence.Hold{{Resource: key, Token: token}} // or fence.Of(lease), where there is one
	return a.fences.Write(ctx, holds, map[string]string{balanceKey: strconv.Itoa(balance)})
}

func (a *account) total(ctx context.Context) (int, error) {
	reply, err := a.do(ctx, "GET", balanceKey)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(fmt.Sprint(reply))
}

func (a *account) do(ctx context.Context, command ...string) (drivers.Reply, error) {
	replies, err := a.Do(ctx, command)
	if err != nil {
		return nil, err
	}
	if refusal, ok := replies[0].(drivers.ServerError); ok {
		return nil, refusal
	}
	return replies[0], nil
}
