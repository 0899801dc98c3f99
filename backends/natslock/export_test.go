package natslock

import (
	"context"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
)

// Backend is what New makes a Client of.
type Backend = store

// NewBackend makes one.
var NewBackend = newBackend

// OpenOver makes a Client of a configuration whose connections are made by dialer.
func OpenOver(s *Config, dialer natsclient.CustomDialer) (*locker.Client, error) {
	return s.open("", natsclient.SetCustomDialer(dialer))
}

// StreamConfig returns the settings with which the bucket is created.
func StreamConfig() jetstream.StreamConfig {
	return (&store{options: options{name: DefaultBucket, replicas: 1}}).config()
}

// FirstSeq returns the first number of a bucket that is created at the given time.
var FirstSeq = firstSeq

// Deaf is how long a server may leave requests unanswered, and store nothing.
const Deaf = deaf

// Reach leaves servers.
type Reach = reach

// NewReach returns a Reach that calls leave.
func NewReach(leave func()) *Reach { return &reach{leave: leave} }

// Stored is called after each write that was acknowledged.
func (r *reach) Stored() { r.stored() }

// Miss is called after each request that was not answered.
func (r *reach) Miss(began time.Time) { r.miss(began) }

// Subject returns the subject of a lock.
func (b *store) Subject(key string) string { return b.subject(key) }

// Left returns the locks in the bucket.
func (b *store) Left(ctx context.Context) (left []string) {
	s, err := b.open(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	lister, err := s.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return []string{err.Error()}
	}
	for subject := range lister.State.Subjects {
		r, err := b.get(ctx, subject)
		switch {
		case err != nil:
			left = append(left, err.Error())
		case r.State != free && subject != b.subjects()+probeKey:
			left = append(left, subject)
		}
	}
	return left
}

// ErrOther is the error of a change whose condition does not hold.
var ErrOther = errOther

// PutFree stores a free record for ttl where there is none, and returns its number.
func (b *store) PutFree(ctx context.Context, key string, ttl time.Duration) (uint64, error) {
	return b.put(ctx, b.subject(key), 0, record{State: free, ttl: ttl})
}

// PutHeld is the request of an attempt that found the free record last.
func (b *store) PutHeld(ctx context.Context, key string, last uint64, token string) error {
	_, err := b.put(ctx, b.subject(key), last, record{State: held, Owner: token, ttl: freeFor})
	return err
}

// Undo undoes such an attempt.
func (b *store) Undo(ctx context.Context, key string, last uint64, token string) error {
	return b.undo(ctx, b.subject(key), last, token)
}
