package s3

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/golocker/locker/record"
)

// probeName is the object of the probe. No lock has this name, because an equals sign in the name of a record is
// followed by two hexadecimal digits, or by an s.
const probeName = "=probe"

// probing is a probe in progress.
type probing struct {
	done chan struct{} // closed when it has ended
	err  error         // written before done is closed
}

// proven returns nil if the server was seen to keep conditions. It probes that in the background, so that a caller with
// little time begins what the next one finds done, and all callers wait for the same probe.
func (s *Store) proven(ctx context.Context) error {
	if s.sound.Load() {
		return nil
	}
	p, err := s.begin()
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("waiting for the probe of conditional writes: %w", ctx.Err())
	}
}

// begin returns the probe in progress, which it starts if there is none.
func (s *Store) begin() (*probing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open.Err(); err != nil {
		return nil, err
	}
	if s.probing == nil {
		p := &probing{done: make(chan struct{})}
		s.probing = p
		s.running.Go(func() {
			ctx, cancel := context.WithTimeout(s.open, record.DefaultTimeout)
			defer cancel()
			p.err = s.probe(ctx)
			s.sound.Store(p.err == nil)
			s.mu.Lock()
			s.probing = nil
			s.mu.Unlock()
			close(p.done)
		})
	}
	return s.probing, nil
}

// probe writes twice with each of the two conditions. The second write must be refused, because the first one has
// changed what the condition is about. If the first one is refused already, as when other processes probe at the same
// time, that is the proof. Nothing is deleted, so the object stays.
func (s *Store) probe(ctx context.Context) error {
	refused := func(header, version string) error {
		var err error
		for n := 0; err == nil; n++ {
			if n == 2 {
				return fmt.Errorf("the server ignores the condition %s: of two writes of s3://%s/%s%s with the same one, it "+
					"has accepted both, so two processes could hold one lock. Use a server that has conditional writes, or a "+
					"version of this one that has", header, s.bucket, s.folder, probeName)
			}
			text := fmt.Appendf(nil, `{"probe":%q}`, rand.Text())
			_, err = s.put(ctx, probeName, version, text)
		}
		if errors.Is(err, record.ErrConflict) {
			return nil
		}
		return fmt.Errorf("probing conditional writes: %w", err)
	}
	if err := refused("If-None-Match", ""); err != nil {
		return err
	}
	_, version, err := s.Get(ctx, probeName)
	switch {
	case err != nil:
		return fmt.Errorf("probing conditional writes: %w", err)
	case version == "":
		return fmt.Errorf("probing conditional writes: s3://%s/%s%s was written and is not there: see what deletes objects",
			s.bucket, s.folder, probeName)
	}
	return refused("If-Match", version)
}
