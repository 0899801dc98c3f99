package postgreslock

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/core/placename"
)

// askForEntry is ask for an entry of a group.
func (b *store) askForEntry(ctx context.Context, req *backend.Request, name []byte, ticket string) (attempt, error) {
	g := req.Group
	var apart [][]byte
	for _, place := range placename.Apart(req.Key, g.Kind != backend.Permit) {
		apart = append(apart, b.name(place))
	}
	read := func(row pgx.Row) (a attempt, err error) {
		var fence, remaining *int64
		var label *string
		err = row.Scan(&fence, &remaining, &label, &a.permits)
		a.set(fence, remaining, label)
		a.gone = fence != nil && *fence == 0
		return a, err
	}
	a, err := request(ctx, b, read, b.sql.acquireEntry,
		name, req.Token, req.Label, microseconds(req.TTL), ticket, b.channel,
		int(g.Kind), g.N, g.Weight, g.From, apart)
	if g.Kind != backend.Permit {
		a.permits = nil
	}
	return a, err
}

// sharedEntry is Grant.Private of a lock of a group that was granted as a shared one.
type sharedEntry struct{}

func privateOf(req *backend.Request) any {
	if req.Group != nil && req.Group.Kind == backend.Shared {
		return sharedEntry{}
	}
	return nil
}

// shares reports whether an extension makes a lock a shared one, or has to say that once more.
func shares(req *backend.Request) bool {
	_, was := req.Private.(sharedEntry)
	return req.Group != nil && req.Group.Kind == backend.Shared && !was
}

// share extends a lock of a group, and makes it a shared one.
func (b *store) share(c *change) (owner string, err error) {
	return request(c.ctx, b, text, b.sql.share, c.name, c.token, c.ttl, c.asks)
}
