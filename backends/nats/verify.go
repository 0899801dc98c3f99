package nats

import (
	"context"
	"errors"
	"strconv"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
)

// Verify implements [locker.Verifier].
//
// A read would prove nothing: a leader that was cut off from its followers may answer reads for a while, although
// another one has been elected. So Verify writes. It stores a message beside the locks, on the condition that the
// lock's last record is the owner's. Only a leader that has a majority can store it.
func (b *Backend) Verify(ctx context.Context, req locker.Request) error {
	if err := b.usable(); err != nil {
		return err
	}
	ctx, cancel := b.bounded(ctx, b.timeout)
	defer cancel()
	subject := b.subject(req.Key)
	err := b.change(ctx, req, func(last uint64) (uint64, error) {
		m := natsclient.NewMsg(b.subjects() + probeKey)
		m.Header.Set(jetstream.MsgTTLHeader, strconv.FormatInt(seconds(time.Second), 10))
		m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
		m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, subject)
		_, err := b.publish(ctx, m)
		return last, err
	})
	if errors.Is(err, errDone) {
		return locker.ErrNotHeld
	}
	return err
}
