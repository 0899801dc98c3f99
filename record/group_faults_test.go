package record_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/internal/testing/recordstore"
)

// An operator releases one of two locks before their acquirer has learnt that it has them.
func TestPartOfSomeLocksIsNotGranted(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b, other := backendOf(t, s), backendOf(t, s)
		reqs := []backend.Request{
			{Key: "{k}#1", Token: backend.NewToken(), TTL: time.Minute},
			{Key: "{k}#2", Token: backend.NewToken(), TTL: time.Minute},
		}
		grabPlace(t, other, 9, time.Hour)
		s.Inject(func(r recordstore.Request) (f recordstore.Fault) {
			if r.Op == "replace" && strings.Contains(r.Text, reqs[0].Token) {
				f.Twice, f.After = true, time.Second
			}
			return f
		})
		ended := make(chan error, 1)
		go func() {
			_, err := b.AcquireMany(t.Context(), reqs, backend.Choice{})
			ended <- err
		}()
		time.Sleep(500 * time.Millisecond)
		s.Inject(nil)
		if _, err := other.ForceRelease(t.Context(), reqs[1].Key, ""); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("one lock of two: got %v", err)
		}
		time.Sleep(time.Second)
		grabPlace(t, other, 1, time.Minute)
	})
}

// What a process knows of a group may be old when it releases one of its locks by force.
func TestForcedReleaseAfterAnOldLook(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b, other := backendOf(t, s), backendOf(t, s)
		grabPlace(t, other, 9, time.Hour)
		one := grabPlace(t, b, 1, time.Hour)
		if _, err := other.ForceRelease(t.Context(), one.Key, ""); err != nil {
			t.Errorf("what it has released: got %v", err)
		}
		if err := b.Extend(t.Context(), one); !errors.Is(err, locker.ErrNotHeld) {
			t.Errorf("an extension after that: got %v", err)
		}
	})
}

// Extensions of one lock are written together. Those who look once still learn when it ends.
func TestExtensionsThatComeTogetherKeepTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, s *recordstore.Store) {
		b := backendOf(t, service{s, func() time.Duration { return 0 }, nil})
		grabPlace(t, b, 2, time.Minute) // which tells the time
		req := grabPlace(t, b, 1, time.Minute)
		release(t, b, grabPlace(t, b, 2+1, time.Minute))
		s.Inject(once(recordstore.Fault{Before: time.Second}))
		for range 3 {
			go func() { _ = b.Extend(t.Context(), req) }()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		text := s.Text(groupName)
		_, text, _ = strings.Cut(text, `"parts"`)
		for _, p := range strings.Split(text, `"state"`) {
			if strings.Contains(p, req.Token) && !strings.Contains(p, "ends_ms") {
				t.Errorf("no end: %s", text)
			}
		}
	})
}
