package recordtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/adler32"
	"hash/crc32"
	"hash/fnv"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/record"
)

func TestMain(m *testing.M) {
	hintLimit = time.Second // the stores are in this process
	goleak.VerifyTestMain(m)
}

// The methods of a Store.
type (
	getter   = func(ctx context.Context, s record.Store, name string) ([]byte, string, error)
	creator  = func(ctx context.Context, s record.Store, name string, text []byte) (string, error)
	replacer = func(ctx context.Context, s record.Store, name, version string, text []byte) (string, error)
)

// flawed is a client of a store with a flaw. Functions that are nil do what a sound one does.
type flawed struct {
	record.Store
	get     getter
	create  creator
	replace replacer
	clock   func() (id string, now time.Duration)
	watch   func(w *recordstore.Watched, changed func()) (live func() bool, stop func())
	tells   func(ctx context.Context, op string) // tells the time, or not
	list    func(ctx context.Context, s *recordstore.Store, prefix, from string) ([]record.Listed, string, error)
}

// ServerClock implements record.ServerClock.
func (f flawed) ServerClock() (resolution, skew time.Duration) {
	if f.tells == nil {
		return 0, 0
	}
	return time.Second, 0
}

func (f flawed) told(ctx context.Context, op string) {
	if f.tells != nil {
		f.tells(ctx, op)
	}
}

// listing is a client that can list.
type listing struct{ flawed }

// List implements record.Lister.
func (l listing) List(ctx context.Context, prefix, from string) ([]record.Listed, string, error) {
	return l.list(ctx, l.Store.(*recordstore.Store), prefix, from)
}

// watching is a client that can watch.
type watching struct {
	flawed
	w *recordstore.Watched
}

// Watch implements record.Watcher.
func (w watching) Watch(_ string, changed func()) (live func() bool, stop func()) {
	return w.watch(w.w, changed)
}

// Clock implements record.Clock.
func (f flawed) Clock() (id string, now time.Duration) {
	if f.clock != nil {
		return f.clock()
	}
	return "", 0
}

func (f flawed) Get(ctx context.Context, name string) ([]byte, string, error) {
	f.told(ctx, "get")
	if f.get != nil {
		return f.get(ctx, f.Store, name)
	}
	return f.Store.Get(ctx, name)
}

func (f flawed) Create(ctx context.Context, name string, text []byte) (string, error) {
	f.told(ctx, "create")
	if f.create != nil {
		return f.create(ctx, f.Store, name, text)
	}
	return f.Store.Create(ctx, name, text)
}

func (f flawed) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	f.told(ctx, "replace")
	if f.replace != nil {
		return f.replace(ctx, f.Store, name, version, text)
	}
	return f.Store.Replace(ctx, name, version, text)
}

var errNone = errors.New("no such record")

// steps reads and compares before it writes, without a condition.
func steps(ctx context.Context, s record.Store, name, version string, text []byte) (string, error) {
	_, seen, err := s.Get(ctx, name)
	if err != nil {
		return "", err
	}
	if seen != version {
		return "", record.ErrConflict
	}
	runtime.Gosched()
	put(ctx, s, name, text)
	_, seen, err = s.Get(ctx, name)
	return seen, err
}

// put writes whatever is there.
func put(ctx context.Context, s record.Store, name string, text []byte) {
	for err := record.ErrConflict; errors.Is(err, record.ErrConflict); {
		_, version, _ := s.Get(ctx, name)
		if version == "" {
			_, err = s.Create(ctx, name, text)
		} else {
			_, err = s.Replace(ctx, name, version, text)
		}
	}
}

// renamed is a Store that keeps a record under another name.
func renamed(rename func(string) string) flawed {
	return flawed{
		get: func(ctx context.Context, s record.Store, name string) ([]byte, string, error) {
			return s.Get(ctx, rename(name))
		},
		create: func(ctx context.Context, s record.Store, name string, text []byte) (string, error) {
			return s.Create(ctx, rename(name), text)
		},
		replace: func(ctx context.Context, s record.Store, name, version string, text []byte) (string, error) {
			return s.Replace(ctx, rename(name), version, text)
		},
	}
}

// flaws has for each rule stores that break it, and perhaps others.
var flaws = map[string][]func() flawed{
	"NothingHasNoVersion": {func() flawed {
		return flawed{get: func(ctx context.Context, s record.Store, name string) ([]byte, string, error) {
			text, version, err := s.Get(ctx, name)
			if err == nil && version == "" {
				err = errNone
			}
			return text, version, err
		}}
	}},
	"TextsComeBack": {func() flawed {
		return flawed{get: func(ctx context.Context, s record.Store, name string) ([]byte, string, error) {
			text, version, err := s.Get(ctx, name)
			return text[:min(len(text), 255)], version, err // a column that is too short
		}}
	}, func() flawed {
		return flawed{create: func(ctx context.Context, s record.Store, name string, text []byte) (string, error) {
			_, err := s.Create(ctx, name, text)
			return "1", err // makes up the version
		}}
	}, func() flawed {
		return flawed{replace: func(ctx context.Context, s record.Store, name, version string, text []byte) (string, error) {
			version, err := s.Replace(ctx, name, version, text)
			if len(text) > 300 {
				return "", record.ErrConflict // is in need of two packets
			}
			return version, err
		}}
	}},
	"CreateOnce": {func() flawed {
		return flawed{create: func(ctx context.Context, s record.Store, name string, text []byte) (string, error) {
			put(ctx, s, name, text) // ignores If-None-Match
			_, version, err := s.Get(ctx, name)
			return version, err
		}}
	}},
	"ReplaceNeedsTheVersion": {func() flawed {
		return flawed{replace: func(ctx context.Context, s record.Store, name, _ string, text []byte) (string, error) {
			_, version, err := s.Get(ctx, name)
			if err != nil || version == "" {
				return "", record.ErrConflict
			}
			return s.Replace(ctx, name, version, text) // ignores If-Match
		}}
	}},
	"ReplaceCreatesNothing": {func() flawed {
		return flawed{replace: func(
			ctx context.Context, s record.Store, name, version string, text []byte,
		) (string, error) {
			if stored, err := s.Create(ctx, name, text); err == nil {
				return stored, nil
			}
			return s.Replace(ctx, name, version, text)
		}}
	}},
	"VersionsDiffer": {
		hashed(func(text []byte) any { return crc32.ChecksumIEEE(text) }),
		hashed(func(text []byte) any { return crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)) }),
		hashed(func(text []byte) any { return adler32.Checksum(text) }),
		hashed(func(text []byte) any {
			h := fnv.New32a()
			_, _ = h.Write(text)
			return h.Sum32()
		}),
		hashed(func(text []byte) any {
			sum := sha256.Sum256(text)
			return sum[:4]
		}),
		hashed(func(text []byte) any { return len(text) }),
		hashed(func(text []byte) any { return string(text[:min(len(text), 40)]) }), // of the owner and the state
	},
	"OneWins": {func() flawed { return flawed{replace: steps} }, func() flawed {
		return flawed{create: func(ctx context.Context, s record.Store, name string, text []byte) (string, error) {
			return steps(ctx, s, name, "", text)
		}}
	}, func() flawed { // tries until it succeeds
		return flawed{replace: func(ctx context.Context, s record.Store, name, version string, text []byte) (string, error) {
			if _, seen, err := s.Get(ctx, name); err != nil || seen != version {
				return "", cmp.Or(err, record.ErrConflict)
			}
			for {
				stored, err := s.Replace(ctx, name, version, text)
				if !errors.Is(err, record.ErrConflict) {
					return stored, err
				}
				_, version, _ = s.Get(ctx, name)
			}
		}}
	}},
	"VersionsAreOnesOwn": {func() flawed {
		return flawed{replace: func(
			ctx context.Context, s record.Store, name, version string, text []byte,
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
		return flawed{get: func(ctx context.Context, s record.Store, name string) ([]byte, string, error) {
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
		func() flawed { return renamed(func(name string) string { return strings.ReplaceAll(name, "=", "-") }) },
		func() flawed { return renamed(func(name string) string { return strings.ReplaceAll(name, "=", "") }) },
		func() flawed {
			return renamed(func(name string) string { return strings.ReplaceAll(name, "=5f", "_") })
		},
		func() flawed { return renamed(func(name string) string { return strings.Trim(name, "-_") }) },
	},
	"TextAndVersionAreOne": {
		func() flawed { // the text by one request, and the version by another
			return flawed{get: func(ctx context.Context, s record.Store, name string) ([]byte, string, error) {
				text, _, err := s.Get(ctx, name)
				if err != nil {
					return nil, "", err
				}
				runtime.Gosched()
				_, version, err := s.Get(ctx, name)
				return text, version, err
			}}
		},
		func() flawed { // memory that is used again
			var buffer []byte
			return flawed{get: func(ctx context.Context, s record.Store, name string) ([]byte, string, error) {
				text, version, err := s.Get(ctx, name)
				buffer = append(buffer[:0], text...)
				return buffer, version, err
			}}
		},
	},
	"EndedContext": {func() flawed {
		return flawed{get: func(ctx context.Context, s record.Store, name string) ([]byte, string, error) {
			return s.Get(context.WithoutCancel(ctx), name)
		}}
	}, func() flawed {
		return flawed{replace: func(
			ctx context.Context, s record.Store, name, version string, text []byte,
		) (string, error) {
			if stored, err := s.Replace(ctx, name, version, text); err == nil {
				return stored, nil
			}
			return "", record.ErrConflict // whatever the error was
		}}
	}},
	"ContextsEndDuringCalls": {func() flawed { // whatever the error was
		return flawed{create: func(ctx context.Context, s record.Store, name string, text []byte) (string, error) {
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			version, err := s.Create(ctx, name, text)
			if err != nil {
				return "", record.ErrConflict
			}
			return version, nil
		}}
	}, func() flawed { // a connection is used again although an answer is to come
		type answer struct {
			text    []byte
			version string
			err     error
		}
		answers := make(chan answer, 100)
		return flawed{get: func(ctx context.Context, s record.Store, name string) ([]byte, string, error) {
			late.Go(func() {
				text, version, err := s.Get(context.WithoutCancel(ctx), name)
				answers <- answer{text, version, err}
			})
			select {
			case a := <-answers:
				return a.text, a.version, a.err
			case <-ctx.Done():
				return nil, "", ctx.Err()
			}
		}}
	}},
	"AcrossProcesses": {func() flawed { // one step in this process only
		return flawed{replace: func(ctx context.Context, s record.Store, name, version string, text []byte) (string, error) {
			global.Lock()
			defer global.Unlock()
			return steps(ctx, s, name, version, text)
		}}
	}, func() flawed { // a cache that all clients of a process share
		return flawed{get: func(ctx context.Context, s record.Store, name string) ([]byte, string, error) {
			global.Lock()
			defer global.Unlock()
			text, version, err := s.Get(ctx, name)
			if c, ok := known[name]; ok && c.until.After(time.Now()) {
				return c.text, c.version, nil
			}
			if err == nil && version != "" {
				known[name] = cached{text, version, time.Now().Add(20 * time.Millisecond)}
			}
			return text, version, err
		}, replace: func(ctx context.Context, s record.Store, name, version string, text []byte) (string, error) {
			global.Lock()
			defer global.Unlock()
			delete(known, name)
			return s.Replace(ctx, name, version, text)
		}}
	}, func() flawed { // versions of one's own
		return flawed{get: func(ctx context.Context, s record.Store, name string) ([]byte, string, error) {
			text, version, err := s.Get(ctx, name)
			if version != "" {
				version = fmt.Sprint(os.Getpid(), version)
			}
			return text, version, err
		}, create: func(ctx context.Context, s record.Store, name string, text []byte) (string, error) {
			version, err := s.Create(ctx, name, text)
			return fmt.Sprint(os.Getpid(), version), err
		}, replace: func(ctx context.Context, s record.Store, name, version string, text []byte) (string, error) {
			version, err := s.Replace(ctx, name, strings.TrimPrefix(version, fmt.Sprint(os.Getpid())), text)
			return fmt.Sprint(os.Getpid(), version), err
		}}
	}},
	"ClockCanBeWritten": {
		clocks("\xff", 1), clocks(strings.Repeat("a", 65), 1), clocks("a", 0), clocks("a", 2, 1),
		func() flawed { return clocks(rand.Text(), 1)() }, // each client has its own
	},
	"AnswersTellTheTime": {
		tells("get", "create"), tells("create", "replace"), tells(),
		func() flawed { // a clock that is an hour ahead of the last answer, each time
			return flawed{tells: func(ctx context.Context, _ string) {
				record.Tell(ctx, time.Now().Add(time.Duration(ahead.Add(1))*time.Hour))
			}}
		},
	},
	"ListsAreComplete": {
		lists(func(l listed) listed { // the second page is lost
			if l.from == "" {
				_, l.next, _ = l.Store.List(l.ctx, l.prefix, l.next)
			}
			return l
		}),
		lists(func(l listed) listed { // nothing comes behind the first page
			l.next = ""
			return l
		}),
		lists(func(l listed) listed { // texts of other records
			for i := range l.page {
				l.page[i].Text = l.page[0].Text
			}
			return l
		}),
		lists(func(l listed) listed { // the underscore of LIKE
			l.page, l.next, l.err = l.Store.List(l.ctx, strings.TrimSuffix(l.prefix, "_"), l.from)
			return l
		}),
		lists(func(l listed) listed { // case is ignored, and so is what is no letter
			l.page = slices.DeleteFunc(l.page, func(r record.Listed) bool { return strings.HasPrefix(r.Name, "=") })
			return l
		}),
		lists(func(l listed) listed { // the error of the last page is not told
			l.err = nil
			return l
		}),
		lists(func(l listed) listed { // what others write meanwhile is behind what was read
			if l.from != "" {
				old, _, _ := l.Store.List(l.ctx, l.prefix, "")
				l.page = slices.DeleteFunc(l.page, func(r record.Listed) bool { return r.Name > old[len(old)-1].Name+"5" })
			}
			return l
		}),
	},
	"ChangesAreTold": {
		watches(sync.OnceFunc, nil), // only when it begins
		watches(func(hint) hint { return func() {} }, nil),
		func() flawed { // goes on after stop
			return flawed{watch: func(w *recordstore.Watched, changed func()) (func() bool, func()) {
				live, _ := w.Watch("k", changed)
				return live, func() {}
			}}
		},
	},
}

// listed is the outcome of a call of List.
type listed struct {
	*recordstore.Store
	ctx                context.Context
	prefix, from, next string
	page               []record.Listed
	err                error
}

// lists is a Store whose lists are changed.
func lists(change func(l listed) listed) func() flawed {
	return func() flawed {
		return flawed{list: func(
			ctx context.Context, s *recordstore.Store, prefix, from string,
		) ([]record.Listed, string, error) {
			l := listed{Store: s, ctx: ctx, prefix: prefix, from: from}
			l.page, l.next, l.err = s.List(ctx, prefix, from)
			l = change(l)
			return l.page, l.next, l.err
		}}
	}
}

type hint = func()

// watches is a Store that watches the record k.
func watches(changed func(changed hint) hint, live func() bool) func() flawed {
	return func() flawed {
		return flawed{watch: func(w *recordstore.Watched, f func()) (func() bool, func()) {
			is, stop := w.Watch("k", changed(f))
			if live != nil {
				is = live
			}
			return is, stop
		}}
	}
}

var ahead atomic.Int64

// tells is a Store that tells the time with some answers.
func tells(ops ...string) func() flawed {
	return func() flawed {
		return flawed{tells: func(ctx context.Context, op string) {
			if slices.Contains(ops, op) {
				record.Tell(ctx, time.Now().Truncate(time.Second))
			}
		}}
	}
}

// What all clients of a process share.
var (
	global sync.Mutex
	late   sync.WaitGroup // calls that go on after they have returned
	known  = make(map[string]cached)
)

type cached struct {
	text    []byte
	version string
	until   time.Time
}

// hashed is a Store whose versions are hashes of the texts.
func hashed(hash func(text []byte) any) func() flawed {
	version := func(text []byte) string {
		if len(text) == 0 {
			return ""
		}
		return fmt.Sprint("v", hash(text))
	}
	return func() flawed {
		return flawed{
			get: func(ctx context.Context, s record.Store, name string) ([]byte, string, error) {
				text, _, err := s.Get(ctx, name)
				return text, version(text), err
			},
			create: func(ctx context.Context, s record.Store, name string, text []byte) (string, error) {
				_, err := s.Create(ctx, name, text)
				return version(text), err
			},
			replace: func(ctx context.Context, s record.Store, name, old string, text []byte) (string, error) {
				seen, stored, err := s.Get(ctx, name)
				if err != nil || version(seen) != old {
					return "", cmp.Or(err, record.ErrConflict)
				}
				_, err = s.Replace(ctx, name, stored, text)
				return version(text), err
			},
		}
	}
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

// opens makes clients of one store, each with the flaw that plant makes. The place of a store is an address at which
// other processes find it.
func opens(plant func() flawed) opener {
	stores := make(map[string]record.Store) // those of this process
	return func(t testing.TB, place string) (record.Store, string) {
		f := plant()
		f.Store = stores[place]
		switch {
		case place == "":
			s := recordstore.New()
			place = listen(t, s)
			f.Store, stores[place] = s, s
		case f.Store == nil:
			conn, err := net.Dial("tcp", place)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			f.Store = newRemote(conn).open(t, "")
		}
		if s, ok := f.Store.(*recordstore.Store); ok && f.watch != nil {
			return watching{f, &recordstore.Watched{Store: s}}, place
		}
		if f.list != nil {
			return listing{f}, place
		}
		return f, place
	}
}

// listen lets other processes use a store until the test ends.
func listen(t testing.TB, s *recordstore.Store) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				serve(conn, func(string) record.Store { return s })
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait() // the processes have ended
		s.Wait()
	})
	return l.Addr().String()
}

func TestSoundStore(t *testing.T) { Run(t, opens(func() flawed { return flawed{} })) }
func TestSoundClock(t *testing.T) { Run(t, opens(clocks("a", 1, 2))) }

func TestSoundLister(t *testing.T) {
	Run(t, opens(func() flawed {
		return flawed{list: func(
			ctx context.Context, s *recordstore.Store, prefix, from string,
		) ([]record.Listed, string, error) {
			return s.List(ctx, prefix, from)
		}}
	}))
}

func TestSoundWatcher(t *testing.T) {
	Run(t, opens(watches(func(changed hint) hint { return changed }, nil)))
}

// A Store need not watch.
func TestWatcherThatDoesNotWatch(t *testing.T) {
	never := watches(func(hint) hint { return func() {} }, func() bool { return false })
	open := opens(never)
	if serves(t, open) {
		return
	}
	changesAreTold(t, open)
}

func TestSoundServerClock(t *testing.T) { Run(t, opens(tells("get", "create", "replace"))) }

// A store that is in this process alone has one client.
func TestStoreWithoutAPlace(t *testing.T) {
	Run(t, func(t testing.TB, place string) (record.Store, string) {
		if place != "" {
			t.Errorf("expected no other place, seen %q", place)
		}
		s := recordstore.New()
		t.Cleanup(s.Wait)
		return s, ""
	})
}

// verdict is a testing.TB that notes whether a check fails.
type verdict struct {
	testing.TB
	mu     sync.Mutex
	failed bool
}

func (v *verdict) Name() string { return v.TB.Name() + "/Trial" }
func (v *verdict) Helper()      {}
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
		for i, plant := range flaws[r.name] {
			t.Run(fmt.Sprint(r.name, i), func(t *testing.T) {
				open := opens(plant)
				if serves(t, open) {
					return
				}
				v := &verdict{TB: t}
				for n := 0; n < 100 && !v.failed; n++ { // a race may go well, and more often under the race detector
					done := make(chan struct{})
					go func() {
						defer close(done)
						r.check(v, open)
					}()
					<-done
				}
				late.Wait()
				if !v.failed {
					t.Error("a flaw was not noticed")
				}
			})
		}
	}
	slices.Sort(names)
	if planted := slices.Sorted(maps.Keys(flaws)); !slices.Equal(names, planted) {
		t.Errorf("there are flaws for %v, and rules %v", planted, names)
	}
}
