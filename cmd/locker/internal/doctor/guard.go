package doctor

import (
	"context"
	"errors"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/node"
	"github.com/golocker/locker/single"
)

// guard asks for a lock with the restart guard of the deployment, because only the node knows whether it rests.
func (p *checkup) guard(ctx context.Context) {
	const check = "guard"
	if p.e.Guard == 0 {
		return
	}
	l := single.New(lend(p.Driver), single.Prefix(p.e.Prefix), single.Name("it"), single.Timeout(p.e.Timeout),
		single.Guard(p.e.Guard))
	defer func() { _ = l.Close() }()
	key := p.probe("guard")
	lease, err := l.TryLock(ctx, key, locker.TTL(min(probeTTL, p.e.Guard)))
	if err == nil {
		err = lease.Unlock(ctx)
	}
	defer func() {
		_, _ = p.ask(context.WithoutCancel(ctx), append(drivers.Command{"DEL"}, node.NamesOf(p.e.Prefix, key).Keys...))
	}()
	var resting *locker.GracePeriodError
	switch {
	case err == nil:
		p.ok(check, "it does not rest; after a restart it will, until all locks of %v have ended", p.e.Guard)
	case errors.As(err, &resting):
		p.warn(check, "wait; or, if the servers are new and no lock can be held, run locker bootstrap", "%v", resting)
	case errors.Is(err, locker.ErrInvalid):
		p.fail(check, "give all clients with this prefix the same guard", "%v", err)
	case errors.Is(err, node.ErrNoGuard) && p.settings.NoInfo.Code() == "NOPERM":
		p.fail(check, "ACL SETUSER "+p.user()+" +info", "it grants no locks: %v", err)
	case errors.Is(err, node.ErrNoGuard):
		p.fail(check, "use a server whose scripts may call INFO; or remove guard= from the configuration, and see "+
			"docs/safety.md, E1, for what has to be seen to instead", "it grants no locks: %v", err)
	default:
		p.fail(check, "see the other checks, and the server's log", "it grants no locks: %v", err)
	}
}
