package recordtest

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The methods of a Store.
type (
	getter   = func(ctx context.Context, s *recordstore.Store, name string) ([]byte, string, error)
	creator  = func(ctx context.Context, s *recordstore.Store, name string, text []byte) (string, error)
	replacer = func(ctx context.Context, s *recordstore.Store, name, version string, text []byte) (string, error)
)

// flawed is a client of a store with a flaw. Functions that are nil do what a sound one does.
type flawed struct {
	*recordstore.Store
	get     getter
	create  creator
	replace replacer
	clock   func() (id string, now time.Duration)
}

// Clock implements record.Clock.
func (f flawed) Clock() (id string, now time.Duration) {
	if f.clock != nil {
		return f.clock()
	}
	return "", 0
}

func (f flawed) Get(ctx context.Context, name string) ([]byte, string, error) {
	if f.get != nil {
		return f.get(ctx, f.Store, name)
	}
	return f.Store.Get(ctx, name)
}

func (f flawed) Create(ctx context.Context, name string, text []byte) (string, error) {
	if f.create != nil {
		return f.create(ctx, f.Store, name, text)
	}
	return f.Store.Create(ctx, name, text)
}

func (f flawed) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	if f.replace != nil {
		return f.replace(ctx, f.Store, name, version, text)
	}
	return f.Store.Replace(ctx, name, version, text)
}

var errNone = errors.New("no such record")

// steps reads and compares before it writes, without a condition.
func steps(ctx context.Context, s *recordstore.Store, name, version string, text []byte) (string, error) {
	_, seen, err := s.Get(ctx, name)
	if err != nil {
		return "", err
	}
	if seen != version {
		return "", record.ErrConflict
	}
	runtime.Gosched()
	s.Put(name, string(text))
	_, seen, err = s.Get(ctx, name)
	return seen, err
}

// renamed is a Store that keeps a record under another name.
func renamed(rename func(string) string) flawed {
	return flawed{
		get: func(ctx context.Context, s *recordstore.Store, name string) ([]byte, string, error) {
			return s.Get(ctx, rename(name))
		},
		create: func(ctx context.Context, s *recordstore.Store, name string, text []byte) (string, error) {
			return s.Create(ctx, rename(name), text)
		},
		replace: func(ctx context.Context, s *recordstore.Store, name, version string, text []byte) (string, error) {
			return s.Replace(ctx, rename(name), version, text)
		},
	}
}

// flaws has for each rule stores that break it, and perhaps others.
var flaws = map[string][]func() flawed{
	"NothingHasNoVersion": {func() flawed {
		return flawed{get: func(ctx context.Context, s *recordstore.Store, name string) ([]byte, string, error) {
			text, version, err := s.Get(ctx, name)
			if err == nil && version == "" {
				err = errNone
			}
			return text, version, err
		}}
	}},
	"TextsComeBack": {func() flawed {
		return flawed{get: func(ctx context.Context, s *recordstore.Store, name string) ([]byte, string, error) {
			text, version, err := s.Get(ctx, name)
			return text[:min(len(text), 255)], version, err // a column that is too short
		}}
	}, func() flawed {
		return flawed{create: func(ctx context.Context, s *recordstore.Store, name string, text []byte) (string, error) {
			_, err := s.Create(ctx, name, text)
			return "1", err // makes up the version
		}}
	}},
	"CreateOnce": {func() flawed {
		return flawed{create: func(ctx context.Context, s *recordstore.Store, name string, text []byte) (string, error) {
			s.Put(name, string(text)) // ignores If-None-Match
			_, version, err := s.Get(ctx, name)
			return version, err
		}}
	}},
	"ReplaceNeedsTheVersion": {func() flawed {
		return flawed{replace: func(ctx context.Context, s *recordstore.Store, name, _ string, text []byte) (string, error) {
			_, version, err := s.Get(ctx, name)
			if err != nil || version == "" {
				return "", record.ErrConflict
			}
			return s.Replace(ctx, name, version, text) // ignores If-Match
		}}
	}},
	"ReplaceCreatesNothing": {func() flawed {
		return flawed{replace: func(
			ctx context.Context, s *recordstore.Store, name, version string, text []byte,
		) (string, error) {
			if stored, err := s.Create(ctx, name, text); err == nil {
				return stored, nil
			}
			return s.Replace(ctx, name, version, text)
		}}
	}},
	"OneWins": {func() flawed { return flawed{replace: steps} }, func() flawed {
		return flawed{create: func(ctx context.Context, s *recordstore.Store, name string, text []byte) (string, error) {
			return steps(ctx, s, name, "", text)
		}}
	}},
	"VersionsAreOnesOwn": {func() flawed {
		return flawed{replace: func(
			ctx context.Context, s *recordstore.Store, name, version string, text []byte,
		) (string, error) {
			if _, err := s.Replace(ctx, name, version, text); err != nil {
				return "", err
			}
			runtime.Gosched()
			_, version, err := s.Get(ctx, name)
			return version, err
		}}
	}},
	"ReadsAreFresh": {func() flawed { // each client has a cache
		var mu sync.Mutex
		type read struct {
			text    []byte
			version string
		}
		cached := map[string]read{}
		return flawed{get: func(ctx context.Context, s *recordstore.Store, name string) ([]byte, string, error) {
			mu.Lock()
			defer mu.Unlock()
			if r, ok := cached[name]; ok {
				return r.text, r.version, nil
			}
			text, version, err := s.Get(ctx, name)
			if err == nil && version != "" {
				cached[name] = read{text, version}
			}
			return text, version, err
		}}
	}},
	"NamesAreTold": {
		func() flawed { return renamed(func(name string) string { return name[:min(len(name), 128)] }) },
		func() flawed { return renamed(func(name string) string { return strings.ReplaceAll(name, "=", "_") }) },
	},
	"EndedContext": {func() flawed {
		return flawed{get: func(ctx context.Context, s *recordstore.Store, name string) ([]byte, string, error) {
			return s.Get(context.WithoutCancel(ctx), name)
		}}
	}, func() flawed {
		return flawed{replace: func(
			ctx context.Context, s *recordstore.Store, name, version string, text []byte,
		) (string, error) {
			if stored, err := s.Replace(ctx, name, version, text); err == nil {
				return stored, nil
			}
			return "", record.ErrConflict // whatever the error was
		}}
	}},
	"ClockCanBeWritten": {
		clocks("\xff", 1), clocks(strings.Repeat("a", 65), 1), clocks("a", 0), clocks("a", 2, 1),
		func() flawed { return clocks(rand.Text(), 1)() }, // each client has its own
	},
}

func clocks(id string, times ...time.Duration) func() flawed {
	return func() flawed {
		n := 0
		return flawed{clock: func() (string, time.Duration) {
			n++
			return id, times[(n-1)%len(times)]
		}}
	}
}

// stores makes clients of one store, each with the flaw that plant makes.
func stores(plant func() flawed) func(t testing.TB, n int) []record.Store {
	return func(t testing.TB, n int) []record.Store {
		s := recordstore.New()
		t.Cleanup(s.Wait)
		all := make([]record.Store, n)
		for i := range all {
			f := plant()
			f.Store = s
			all[i] = f
		}
		return all
	}
}

func TestSoundStore(t *testing.T) {
	Run(t, stores(func() flawed { return flawed{} }))
	Run(t, stores(clocks("a", 1, 2)))
}

// verdict is a testing.TB that notes whether a check fails.
type verdict struct {
	testing.TB
	mu     sync.Mutex
	failed bool
}

func (v *verdict) Helper() {}
func (v *verdict) Errorf(string, ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failed = true
}

func (v *verdict) Fatalf(string, ...any) {
	v.Errorf("")
	runtime.Goexit()
}

// For each rule there is a store that breaks it, and the check of that rule notices.
func TestFlawsAreNoticed(t *testing.T) {
	var names []string
	for _, r := range rules {
		names = append(names, r.name)
		for _, plant := range flaws[r.name] {
			v := &verdict{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range 50 { // a race may go well
					if !v.failed {
						r.check(v, stores(plant))
					}
				}
			}()
			<-done
			if !v.failed {
				t.Errorf("%s: a flaw was not noticed", r.name)
			}
		}
	}
	slices.Sort(names)
	if planted := slices.Sorted(maps.Keys(flaws)); !slices.Equal(names, planted) {
		t.Errorf("there are flaws for %v, and rules %v", planted, names)
	}
}
