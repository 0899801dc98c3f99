package nats

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
)

// Subject returns the subject of a lock.
func (b *Backend) Subject(key string) string { return b.subject(key) }

// Left returns the locks in the bucket.
func (b *Backend) Left(ctx context.Context) (left []string) {
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
