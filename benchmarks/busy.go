package main

import (
	"context"
	"strconv"
	"time"

	"github.com/golocker/locker/drivers"
)

// busyTime is about what a script of 32 joined commands takes.
const busyTime = 67 * time.Microsecond

// busy sends a script that only counts, for about busyTime, in place of the two commands. How long such a script keeps
// a server at worst is not the script's doing, but that of the machine.
type busy struct {
	driverCommands
	steps string
}

const counting = `for i = 1, ARGV[1] + 0 do end return 1`

func busyOver(d drivers.Driver) (session, error) {
	c := busy{driverCommands{d, func() {}}, ""}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	const many = 1e6
	start := time.Now()
	if _, err := c.one(ctx, drivers.Command{"EVAL", counting, "0", strconv.Itoa(many)}); err != nil {
		return nil, err
	}
	c.steps = strconv.Itoa(int(many * busyTime / time.Since(start)))
	return openRaw(c, nil)
}

func (c busy) load() (string, error) { return c.loads(counting) }

func (busy) set(context.Context, string) (bool, error) { return true, nil }

func (c busy) del(ctx context.Context, sha, _ string) (bool, error) {
	reply, err := c.one(ctx, drivers.Command{"EVALSHA", sha, "0", c.steps})
	return reply == int64(1), err
}
