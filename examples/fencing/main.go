// Fencing: why a lock alone does not protect a resource, and how a fencing token does.
//
//	go run ./examples/fencing                                                   # on locks of this process
//	LOCKER_URL=redlock://host1,host2,host3 go run ./examples/fencing            # on any other backend
//	LOCKER_ACCOUNT=localhost:6379 go run ./examples/fencing                     # also with package fence, in a Redis
//
// A lock that outlives its holder's death must end by itself. But a holder may only have seemed dead: its process was
// stopped or swapped out, or its machine was moved. It wakes while another holder has the lock, and continues where
// it was. Between a look at the clock and a write there is always room for a pause, so no lock service can prevent
// that. The resource can: every lease has a token, greater than all before, and the resource refuses a token lower
// than one it has seen. It must see the token with the first read already, as the fifth act shows. Package fence does
// that for databases and in Redis.
//
// If the resource cannot compare tokens, locker.Verify before the write leaves little room, but some.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all" // the Redis clients that LOCKER_URL may name
)

const (
	key = "fencing"
	ttl = 500 * time.Millisecond // of the holder that is late
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program on the spot
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fencing:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	l, err := config.Open(ctx, cmp.Or(os.Getenv("LOCKER_URL"), "memory:"))
	if err != nil {
		return err
	}
	defer l.Close()
	acts := []act{
		{"1. Without tokens, the late write undoes a newer one.", ignores, never, afterwards, false},
		{"2. A holder that asks the store before the write is told in time.", ignores, beforeWrite, afterwards, true},
		{"3. But the pause may come between the two.", ignores, beforePause, afterwards, false},
		{"4. A register that checks the tokens of writes refuses the late one.", checksWrites, never, afterwards, true},
		{"5. But not between the other's read and its write: nothing has shown the other's token yet.",
			checksWrites, never, between, false},
		{"6. So the token comes with the first read.", fences, never, between, true},
		{"7. Which is as good afterwards.", fences, never, afterwards, true},
	}
	var inRedis resource
	if addr := os.Getenv("LOCKER_ACCOUNT"); addr != "" {
		a, err := openAccount(ctx, addr, 100)
		if err != nil {
			return err
		}
		defer a.Close()
		inRedis = a
		acts = append(acts, act{"8. Package fence does so in a Redis.", inPackage, never, between, true})
	}
	for _, act := range acts {
		fmt.Fprintln(out, act.title)
		p := &play{
			locker: l, out: out, rule: act.rule, resource: inRedis, verifies: act.verifies, safe: act.safe,
		}
		if act.rule != inPackage {
			p.resource = &register{rule: act.rule, balance: 100}
		}
		if err := p.run(ctx, act.late); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "ok: no late write was accepted where it had to be refused")
	return nil
}

// act is one play.
type act struct {
	title    string
	rule     rule
	verifies step
	late     moment
	safe     bool // the late write must not happen
}

// moment is the moment at which the late holder wakes.
type moment int

const (
	between    moment = iota // the other's read and its write
	afterwards               // when the other has finished
)

// step is where Anna calls locker.Verify.
type step int

const (
	never step = iota
	beforePause
	beforeWrite
)

// play lets Anna and Ben each pay something into the account, under the lock. Anna is paused while she holds it.
type play struct {
	locker   locker.Locker
	out      io.Writer
	rule     rule
	resource resource
	verifies step
	safe     bool
	paid     int // the sum that the resource accepted
}

func (p *play) run(ctx context.Context, late moment) error {
	// NoRenewal, because a process that is paused does not renew either.
	anna, err := p.locker.Lock(ctx, key, locker.TTL(ttl), locker.NoRenewal())
	if err != nil {
		return err
	}
	annas, err := p.resource.read(ctx, anna.Fence())
	if err != nil {
		return err
	}
	if p.verifies == beforePause {
		if err := locker.Verify(ctx, anna); err != nil {
			return err
		}
		p.say("the store proves that nobody has been given the lock after Anna")
	}
	p.say("Anna has the lock with token %d, reads %d, and is paused", anna.Fence(), annas)
	select { // the pause: Anna's process does not run, and does not see the time pass
	case <-time.After(ttl):
	case <-ctx.Done():
		return ctx.Err()
	}

	ben, err := p.locker.Lock(ctx, key) // Anna's lock has ended
	if err != nil {
		return err
	}
	if ben.Fence() <= anna.Fence() {
		return fmt.Errorf("VIOLATION: token %d came after %d", ben.Fence(), anna.Fence())
	}
	bens, err := p.resource.read(ctx, ben.Fence())
	if err != nil {
		return err
	}
	p.say("Ben has the lock with token %d, reads %d", ben.Fence(), bens)

	if late == between {
		p.wakes(ctx, anna, annas)
	}
	p.pay(ctx, "Ben", ben, bens, 10)
	if err := ben.Unlock(ctx); err != nil {
		return err
	}
	if late == afterwards {
		p.wakes(ctx, anna, annas)
	}
	// Her Unlock says what happened. It leaves another holder's lock alone.
	if err := anna.Unlock(ctx); err == nil {
		return errors.New("VIOLATION: Anna still had the lock when Ben had it")
	}
	return p.balance(ctx)
}

// wakes lets Anna go on after the pause.
func (p *play) wakes(ctx context.Context, anna locker.Lease, read int) {
	if p.verifies == beforeWrite {
		if err := locker.Verify(ctx, anna); err != nil {
			p.say("Anna does not write (%v)", err)
			return
		}
	}
	p.pay(ctx, "Anna", anna, read, 5)
}

// pay writes a larger balance than was read before, with the token of the lease.
func (p *play) pay(ctx context.Context, who string, lease locker.Lease, read, amount int) {
	state := "still holding the lock"
	if err := lease.Err(); err != nil {
		state = err.Error() // look at it before a write; but a pause can follow the look
	}
	if err := p.resource.write(ctx, lease.Fence(), read+amount); err != nil {
		p.say("%s (%s) writes %d: %v", who, state, read+amount, err)
		return
	}
	p.say("%s (%s) writes %d: accepted", who, state, read+amount)
	p.paid += amount
}

// balance compares the balance with the sum that was paid.
func (p *play) balance(ctx context.Context) error {
	want := 100 + p.paid
	got, err := p.resource.total(ctx)
	if err != nil {
		return err
	}
	if got == want {
		p.say("the balance is %d, as it should be", want)
		return nil
	}
	p.say("the balance is %d, and should be %d: an update is lost", got, want)
	if p.safe {
		return fmt.Errorf("VIOLATION: a register that %s accepted a late write", p.rule)
	}
	return nil
}

func (p *play) say(format string, args ...any) {
	fmt.Fprintf(p.out, "   "+format+"\n", args...)
}
