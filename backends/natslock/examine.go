package natslock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	natsclient "github.com/nats-io/nats.go"

	"github.com/golocker/locker/inspect"
)

// Examine implements [inspect.Examiner]. It asks the server about the bucket, which it creates if it does not exist,
// and tries the right to be told of changes. What it finds missing in the user's rights, it names by the subject.
func (b *store) Examine(ctx context.Context) (found []inspect.Finding) {
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	add := func(check string, level inspect.Level, fix, format string, args ...any) {
		found = append(found, inspect.Finding{Check: check, Level: level, Text: fmt.Sprintf(format, args...), Fix: fix})
	}
	fail := func(check string, err error) []inspect.Finding {
		fix := "see whether nats-server runs, and what its log says"
		var a *advised
		if errors.As(err, &a) {
			fix = a.fix
		}
		add(check, inspect.Fail, fix, "%s", strings.TrimSuffix(err.Error(), ": "+fix))
		return found
	}
	if err := b.connected(ctx); err != nil {
		return fail("connection", err)
	}
	conn := b.jet().Conn()
	add("connection", inspect.OK, "", "connected to %s, nats-server %s", conn.ConnectedUrlRedacted(),
		conn.ConnectedServerVersion())
	bucket, err := b.open(ctx)
	if err != nil {
		return fail("bucket", err)
	}
	info, err := bucket.Info(ctx)
	if err != nil {
		return fail("bucket", b.explained(err))
	}
	if err := b.misfit(info); err != nil { // somebody has changed it since it was opened
		return fail("bucket", fmt.Errorf("bucket %s is not for locks: %w", b.name, err))
	}
	add("bucket", inspect.OK, "", "%s is fit for locks", b.name)
	if !info.Config.AllowAtomicPublish {
		add("batches", inspect.Warn, "use nats-server 2.12 or later, and set allow_atomic of the bucket",
			"LockAll acquires its locks one after the other")
	}
	edit := "nats stream edit KV_" + b.name + " --replicas=3"
	switch c := info.Cluster; {
	case c == nil || c.Name == "":
		add("replicas", inspect.OK, "", "the server is not part of a cluster; nobody gets a lock while it is down")
	case info.Config.Replicas < 3:
		add("replicas", inspect.Warn, edit, "nobody gets a lock while one of %d servers is down", info.Config.Replicas)
	default:
		add("replicas", inspect.OK, "", "%d servers keep the bucket; %s leads", info.Config.Replicas, c.Leader)
	}
	if c := info.Cluster; c != nil {
		for _, r := range c.Replicas {
			if r.Offline || !r.Current {
				add("replicas", inspect.Warn, "start it, and see whether it reaches the others",
					"%s is down or lags behind", r.Name)
			}
		}
	}
	if err := b.hears(ctx, conn); err != nil {
		add("messages", inspect.Warn, "allow the user to subscribe to "+b.told()+">",
			"waiters are not notified, and look once or twice in two seconds (%v)", err)
	}
	return found
}

// hears returns an error if the user may not subscribe to what the server tells of changes.
func (b *store) hears(ctx context.Context, conn *natsclient.Conn) error {
	subject := b.told() + "=doctor"
	sub, err := conn.SubscribeSync(subject)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := conn.FlushWithContext(ctx); err != nil {
		return err
	}
	err = conn.LastError() // a refusal comes before the answer to the flush
	if errors.Is(err, natsclient.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+subject+`"`) {
		return err
	}
	return nil
}
