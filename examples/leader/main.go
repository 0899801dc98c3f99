package main

import (
	"context"
	"flag"
	"os/signal"
	"syscall"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	_ "github.com/golocker/locker/drivers/all" // the Redis clients that LOCKER_URL may name
	"github.com/golocker/locker/election"
)

func main() {
	flag.Parse()
	// On Ctrl-C the leader steps down, so that the next one does not have to wait for the end of the TTL.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)                     // a second Ctrl-C ends the program on the spot
	l, err := config.Open(ctx, url, locker.TTL(ttl)) // a store that all candidates share
	exitOn(err)
	defer l.Close()
	run(ctx, func(ctx context.Context, me *worker) error { return campaign(ctx, l, me) })
}

// campaign is a candidate, until ctx ends.
func campaign(ctx context.Context, l locker.Locker, me *worker) error {
	return election.Run(ctx, l, "leader", election.Config{
		Identity: me.name,
		StopTime: pieceTime,
		OnElected: func(ctx context.Context, term election.Term) error {
			me.says("leads, with token %d", term.Number)
			return me.work(ctx, term.Number) // until ctx ends, which is before anybody else leads
		},
		OnDemoted: func(_ election.Term, cause error) { me.says("steps down (%v)", cause) },
		OnError:   func(err error) { me.says("%v", err) },
	})
}
