package s3lock

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

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
			if err := s.probe(ctx); err != nil {
				p.err = fmt.Errorf("probing conditional writes: %w", err)
			}
			s.sound.Store(p.err == nil)
			s.mu.Lock()
			s.probing = nil
			s.mu.Unlock()
			close(p.done)
		})
	}
	return s.probing, nil
}

const (
	// racers is how many writes of a race are sent at once. They have a connection each: the SDK keeps ten.
	racers = 8

	// races is how many races the probe runs. A server that compares in one step and writes in another one is seen in the
	// first one, or in the next, whose connections are open.
	races = 3

	// raceAgain is after how long the next Client runs races again. Each one makes sure that conditions are not ignored.
	raceAgain = 24 * time.Hour
)

// nowhere is an ETag that no object has.
const nowhere = `"00000000000000000000000000000000"`

// probed is the text of the probe's object.
type probed struct {
	Probe string    `json:"probe"`          // no two texts have the same one
	Raced time.Time `json:"raced,omitzero"` // when races have shown no fault; zero before
}

func textOf(raced time.Time) []byte {
	text, _ := json.Marshal(probed{rand.Text(), raced}) // of a text and a time: never fails
	return text
}

// recent reports whether the races of the text have succeeded a short time ago. A time to come is that of a wrong
// clock.
func recent(text []byte) bool {
	var p probed
	age := time.Duration(-1)
	if json.Unmarshal(text, &p) == nil {
		age = time.Since(p.Raced)
	}
	return age >= 0 && age < raceAgain
}

// probe makes sure that a write whose condition does not hold is refused, and one whose condition holds is accepted,
// but only one of several that are sent at the same time. Nothing is deleted, so the object stays.
func (s *Store) probe(ctx context.Context) error {
	text, version, err := s.Get(ctx, probeName)
	if err == nil && version == "" {
		version, _, err = s.race(ctx, "")
	}
	if err != nil {
		return err
	}
	for _, condition := range []string{"", nowhere} {
		_, err := s.put(ctx, probeName, condition, textOf(time.Time{}))
		switch {
		case err == nil:
			return fmt.Errorf("the server ignores the condition %s: it has accepted a write of %s that it had to refuse, so "+
				"%s", header(condition), s.probeURL(), useAnother)
		case !errors.Is(err, record.ErrConflict):
			return err
		}
	}
	if recent(text) {
		return nil
	}
	for limited, n := false, 0; n < races && !limited; n++ {
		if version, limited, err = s.race(ctx, version); err != nil {
			return err
		}
	}
	_, _ = s.put(ctx, probeName, version, textOf(time.Now())) // if another process probes, too, one of them writes it
	return nil
}

// race sends writes with the condition of version at the same time, and returns the version that is there then. If the
// server limits the writes of an object, they reach it one after the other, and another race would show no more.
//
// Other processes may probe at the same time. Then all writes may be refused, and the version is another one.
func (s *Store) race(ctx context.Context, version string) (next string, limited bool, err error) {
	type answer struct {
		version string
		err     error
	}
	answers := make(chan answer, racers)
	for range racers {
		go func() {
			stored, err := s.send(ctx, probeName, version, textOf(time.Time{}))
			answers <- answer{stored, err}
		}()
	}
	accepted, refused := 0, 0
	for range racers {
		switch a := <-answers; {
		case a.err == nil:
			accepted++
			next = a.version
		case errors.Is(a.err, record.ErrConflict):
			refused++
		default:
			err = a.err
			limited = limited || statusOf(err) == http.StatusTooManyRequests
		}
	}
	if accepted+refused == 0 && busy(err) {
		if next, err = s.put(ctx, probeName, version, textOf(time.Time{})); err == nil {
			accepted++
		} else if errors.Is(err, record.ErrConflict) {
			refused++
		}
	}
	switch {
	case accepted > 1:
		return "", false, fmt.Errorf("the server ignores the condition %s, or compares and writes in two steps: of %d "+
			"writes of %s with the same one, which were sent at the same time, it has accepted %d, so %s", header(version),
			racers, s.probeURL(), accepted, useAnother)
	case accepted == 1:
		return next, limited, nil
	case refused == 0:
		return "", false, err
	}
	switch _, next, err = s.Get(ctx, probeName); {
	case err != nil:
		return "", false, err
	case next == "":
		return "", false, fmt.Errorf("%s was written and is not there: see what deletes objects", s.probeURL())
	case next == version:
		return "", false, fmt.Errorf("the server refuses every write with the condition If-Match: it has refused %d writes "+
			"of %s with the ETag %s, which the object still has, so no lock could be renewed or released. See whether a proxy "+
			"changes ETags, or use another server", refused, s.probeURL(), version)
	}
	return next, limited, nil
}

// useAnother is what to do about a server that could grant a lock to two processes.
const useAnother = "two processes could hold one lock. Use a server that has conditional writes, or a version of " +
	"this one that has"

// header returns the name of the condition by which put names a version.
func header(version string) string {
	if version == "" {
		return "If-None-Match"
	}
	return "If-Match"
}

func (s *Store) probeURL() string { return fmt.Sprintf("s3://%s/%s%s", s.bucket, s.folder, probeName) }
