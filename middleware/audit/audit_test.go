package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/election"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/middleware/audit"
	"github.com/golocker/locker/once"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/semaphore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// file is a log that a test can read, and that can fail.
type file struct {
	mu    sync.Mutex
	text  bytes.Buffer
	room  int           // how many bytes are written before the disk is full; negative: any
	block chan struct{} // nil, or Write waits until it is closed
}

func newFile() *file { return &file{room: -1} }

func (f *file) Write(p []byte) (int, error) {
	if f.block != nil {
		<-f.block
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.room < 0 || f.room >= len(p) {
		return f.text.Write(p)
	}
	n, _ := f.text.Write(p[:f.room])
	f.room = 0
	return n, syscall.ENOSPC
}

func (f *file) lines(t *testing.T) (lines []audit.Line) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	return parse(t, f.text.String())
}

func parse(t *testing.T, text string) (lines []audit.Line) {
	t.Helper()
	for line := range strings.Lines(text) {
		var l audit.Line
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		lines = append(lines, l)
	}
	return lines
}

// said returns what the lines tell, without what is random.
func said(lines []audit.Line) (all []string) {
	for _, l := range lines {
		text := strings.TrimSpace(fmt.Sprint(l.Event, " ", l.Kind, " ", l.Key, " ", l.Outcome, " ", l.Reason))
		all = append(all, strings.Join(strings.Fields(text), " "))
	}
	return all
}

func wants(t *testing.T, f *file, want ...string) {
	t.Helper()
	if got := said(f.lines(t)); !slices.Equal(got, want) {
		t.Errorf("the lines are\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestEachEventHasALine(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		ctx, f := t.Context(), newFile()
		log := audit.New(f)
		store := memory.NewBackend()
		client := locker.NewClient(store)
		l := locker.Wrap(client, log.Middleware("store"))
		a, _ := l.Lock(ctx, "a", locker.TTL(time.Second), locker.Label("me"))
		if _, err := l.TryLock(ctx, "a"); !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		next := make(chan locker.Lease)
		for range 2 {
			go func() {
				b, _ := l.Lock(ctx, "a", locker.TTL(time.Second), locker.Label("me"))
				next <- b
			}()
			synctest.Wait()
		}
		time.Sleep(500 * time.Millisecond) // for a renewal
		if err := errors.Join(a.Extend(ctx), locker.Verify(ctx, a), a.Unlock(ctx)); err != nil {
			t.Error(err)
		}
		b := <-next
		_ = b.Unlock(ctx)
		b = <-next
		i, _ := locker.As[inspect.Inspector](l)
		if _, err := i.ForceRelease(ctx, "a", ""); err != nil {
			t.Error(err)
		}
		<-b.Done()
		synctest.Wait()
		if err := b.Unlock(ctx); !errors.Is(err, locker.ErrNotHeld) {
			t.Error(err)
		}
		short, _ := l.TryLock(ctx, "short", locker.TTL(time.Second), locker.NoRenewal())
		<-short.Done()
		synctest.Wait()
		left, _ := l.TryLock(ctx, "left")
		leases, err := locker.TryLockMany(ctx, l, locker.Many{Keys: []string{"left", "many"}})
		if len(leases) > 0 || !errors.Is(err, locker.ErrHeld) {
			t.Error(err)
		}
		_ = client.Close()
		<-left.Done()
		_ = log.Close()
		wants(t, f, "start", "acquired lock a ok", "refused lock a held", "extended lock a ok", "extended lock a ok",
			"verified lock a ok", "released lock a ok", "acquired lock a ok", "released lock a ok", "handed over lock a ok",
			"taken by force lock a ok", "lost lock a gone", "released lock a not held gone",
			"acquired lock short ok", "lost lock short expired", "acquired lock left ok", "refused lock left held",
			"refused lock many held",
			"lost lock left closed", "close")
		lines := f.lines(t)
		for n, line := range lines {
			if line.Seq != uint64(n+1) || line.Process != lines[0].Process || line.Version != audit.Version {
				t.Errorf("line %d is %+v", n, line)
			}
		}
		first, second, handed := lines[1], lines[7], lines[9]
		if second.Grant == first.Grant || second.Grant == "" || second.Grant != handed.Grant ||
			handed.Fence != second.Fence+1 || handed.First != second.Fence || second.Tokens < 2 {
			t.Errorf("%+v was handed over as %+v", second, handed)
		}
		if strings.Contains(f.text.String(), a.Token()) || strings.Contains(a.Token(), first.Grant) {
			t.Error("the owner token was written")
		}
		if lines[2].Label != "me" || first.Label != "me" || first.Store != "store" || first.UntilMono <= 0 ||
			first.UntilMono > time.Second || first.Until.Sub(first.Answered) != first.UntilMono-first.AnsweredMono {
			t.Errorf("%+v", first)
		}
	})
}

func TestKindsAreTold(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		ctx, f := t.Context(), newFile()
		log := audit.New(f)
		client := locker.NewClient(memory.NewBackend())
		l := locker.Wrap(client, log.Middleware("store"))
		kinds := map[audit.Kind]int{}
		for _, l := range []locker.Locker{semaphore.New(l, 3).Weight(2), rwlock.New(l).Shared(),
			rwlock.New(l).Exclusive(), rwlock.New(l).Upgradeable()} {
			lease, err := l.TryLock(ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			_ = lease.Unlock(ctx)
		}
		if lease, err := rwlock.New(l).Exclusive().TryLock(ctx, "down"); err == nil {
			shared, err := rwlock.Downgrade(ctx, lease)
			if err != nil {
				t.Fatal(err)
			}
			_ = shared.Unlock(ctx)
		}
		if lease, err := once.Claim(ctx, l, "job", time.Now().Truncate(time.Second)); err == nil {
			_ = lease.Unlock(ctx)
		}
		leads, stop := context.WithCancel(ctx)
		leader := func(ctx context.Context, _ election.Term) error {
			if lease, err := l.TryLock(ctx, "work"); err == nil {
				_ = lease.Unlock(ctx)
			}
			stop()
			return nil
		}
		if err := election.Run(leads, l, "leader", election.Config{OnElected: leader}); err != nil {
			t.Error(err)
		}
		_ = client.Close()
		_ = log.Close()
		for _, line := range f.lines(t) {
			if line.Event == audit.Acquired {
				kinds[line.Kind]++
			}
			if line.Kind == audit.Permit && line.Limit > 0 && line.Event == audit.Acquired && len(line.Slots) != 2 {
				t.Errorf("%+v", line)
			}
			if strings.Contains(line.Key, "down") && line.Event == audit.Released && line.Kind != audit.Shared {
				t.Errorf("%+v", line)
			}
			if line.Key == "work" && line.Kind != audit.Plain {
				t.Errorf("%+v", line)
			}
		}
		for _, kind := range []audit.Kind{audit.Permit, audit.Shared, audit.Exclusive, audit.Upgradeable, audit.Tick,
			audit.Term, audit.Plain} {
			if kinds[kind] == 0 {
				t.Errorf("no lock is of the kind %s: %v", kind, kinds)
			}
		}
	})
}

// What a call gives back because it has not got everything may have ended before, and another may have it: the line
// does not say that the store has released it.
func TestAnUndoneLockIsNotSaidToBeReleased(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		f := newFile()
		log := audit.New(f)
		client := locker.NewClient(memory.NewBackend())
		other, _ := client.TryLock(t.Context(), "b")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		opaque := locker.Wrap(struct{ locker.Locker }{client}, log.Middleware("store"))
		if _, err := locker.LockAll(ctx, opaque, []string{"a", "b"}); err == nil {
			t.Fatal("b is held")
		}
		_ = other.Unlock(t.Context())
		_ = client.Close()
		_ = log.Close()
		released := 0
		for _, line := range f.lines(t) {
			if line.Event == audit.Released {
				if released++; line.Outcome != audit.Unknown {
					t.Errorf("%+v", line)
				}
			}
		}
		if released == 0 {
			t.Error("nothing was undone")
		}
	})
}

// Around a semaphore, the middleware does not say that a key has one holder.
func TestPermitsAreNoLocksAroundASemaphore(t *testing.T) {
	f := newFile()
	log := audit.New(f)
	client := locker.NewClient(memory.NewBackend())
	l := locker.Wrap(semaphore.New(client, 2), log.Middleware("store"))
	lease, err := l.TryLock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	_ = lease.Unlock(t.Context())
	_ = client.Close()
	_ = log.Close()
	wants(t, f, "start", "acquired shared k ok", "released shared k ok", "close")
}

func TestKeysAreHashed(t *testing.T) {
	for key, want := range map[string]string{
		"secret": "2bb80d537b1da3e38bd30361aa855686", "\xff": "a8100ae6aa1940d0b663bb31cd466142",
	} {
		f := newFile()
		var opts []audit.Option
		if key == "secret" {
			opts = append(opts, audit.HashKeys())
		}
		log := audit.New(f, opts...)
		client := locker.NewClient(memory.NewBackend())
		l := locker.Wrap(client, log.Middleware("store"))
		lease, _ := l.TryLock(t.Context(), key)
		_, _ = l.TryLock(t.Context(), key)
		_ = lease.Unlock(t.Context())
		_ = client.Close()
		_ = log.Close()
		for _, line := range f.lines(t) {
			if line.Kind != "" && (line.Key != "" || line.KeyHash != want) {
				t.Errorf("%q: %+v", key, line)
			}
		}
		if strings.Contains(f.text.String(), "secret") {
			t.Error(f.text.String())
		}
	}
}

// Errors of stores, drivers and middleware may have the key in them, also encoded.
func TestHashedKeysAreNotInErrors(t *testing.T) {
	for _, failure := range []error{
		fmt.Errorf("GET locks/c2VjcmV0 of secret: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}),
		fmt.Errorf("%w: %w", locker.ErrUnavailable, &locker.Error{Op: "lock", Key: "secret", Err: io.EOF}),
		&os.PathError{Op: "open", Path: "/locks/secret", Err: syscall.EACCES},
	} {
		f := newFile()
		log := audit.New(f, audit.HashKeys())
		client := locker.NewClient(failing{memory.NewBackend(), failure})
		_, _ = locker.Wrap(client, log.Middleware("store")).TryLock(t.Context(), "secret")
		_ = client.Close()
		_ = log.Close()
		said := f.lines(t)[1].Err
		if text := f.text.String(); strings.Contains(text, "secret") || strings.Contains(text, "c2VjcmV0") {
			t.Error(text)
		}
		if !strings.Contains(said, "connection refused") && !strings.Contains(said, "EOF") &&
			!strings.Contains(said, "permission denied") {
			t.Errorf("of %v, the line says %q", failure, said)
		}
	}
}

type failing struct {
	backend.Backend
	err error
}

func (f failing) Acquire(context.Context, backend.Request) (backend.Grant, error) {
	return backend.Grant{}, f.err
}

// late is a Locker whose Unlock returns long after the lock was released.
type late struct {
	locker.Locker
	by time.Duration
}

type lateLease struct {
	locker.Lease
	by time.Duration
}

func (l late) TryLock(ctx context.Context, key string, opts ...locker.Option) (locker.Lease, error) {
	lease, err := l.Locker.TryLock(ctx, key, opts...)
	return lateLease{lease, l.by}, err
}

func (l lateLease) Unlock(ctx context.Context) error {
	defer time.Sleep(l.by)
	return l.Lease.Unlock(ctx)
}

// Whoever reads a complete log relies on it that a lock was not unlocked.
func TestCloseWaitsForTheLineOfAnUnlock(t *testing.T) {
	for by, want := range map[time.Duration][]string{
		100 * time.Millisecond: {"released lock k ok", "close"}, time.Minute: {"dropped", "close"},
	} {
		virtual.Test(t, func(t *testing.T) {
			f := newFile()
			log, client := audit.New(f), locker.NewClient(memory.NewBackend())
			lease, err := locker.Wrap(late{client, by}, log.Middleware("store")).TryLock(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = lease.Unlock(t.Context()) }()
			synctest.Wait()
			_ = client.Close()
			began := time.Now()
			_ = log.Close()
			if took := time.Since(began); took > time.Second {
				t.Errorf("Close took %v", took)
			}
			wants(t, f, append([]string{"start", "acquired lock k ok"}, want...)...)
			time.Sleep(by)
		})
	}
}

// A lock does not wait for a file that cannot be written. Lines that do not fit are counted.
func TestAFileThatHangsDoesNotBlockALock(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		ctx, f := t.Context(), newFile()
		f.block = make(chan struct{})
		log := audit.New(f)
		client := locker.NewClient(memory.NewBackend())
		l := locker.Wrap(client, log.Middleware("store"))
		const holds = 5000 // a line has 400 bytes or so
		for range holds {
			lease, err := l.TryLock(ctx, "k")
			if err == nil {
				err = lease.Unlock(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		close(f.block)
		synctest.Wait()
		lease, _ := l.TryLock(ctx, "k")
		_ = lease.Unlock(ctx)
		_ = client.Close()
		_ = log.Close()
		lines := f.lines(t)
		last, missing := uint64(0), uint64(0)
		for _, line := range lines {
			if line.Event == audit.Dropped {
				missing += line.Missing
			} else if line.Seq != last+1 {
				t.Errorf("line %d follows line %d", line.Seq, last)
			}
			last = line.Seq
		}
		if said(lines)[len(lines)-1] != "close" || missing == 0 || uint64(len(lines))+missing != last || last != 2*holds+5 {
			t.Errorf("%d lines, %d are missing, the last is %d", len(lines), missing, last)
		}
	})
}

// A line that did not fit on the disk is written again, as a whole.
func TestAFullDiskLosesNoLine(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		ctx, f := t.Context(), newFile()
		f.room = 700
		log := audit.New(f)
		client := locker.NewClient(memory.NewBackend())
		l := locker.Wrap(client, log.Middleware("store"))
		for range 4 {
			lease, _ := l.TryLock(ctx, "k")
			_ = lease.Unlock(ctx)
		}
		time.Sleep(10 * time.Second)
		f.mu.Lock()
		f.room = -1
		f.mu.Unlock()
		_ = client.Close()
		_ = log.Close()
		seqs := 0
		for line := range strings.Lines(f.text.String()) {
			var l audit.Line
			if json.Unmarshal([]byte(line), &l) == nil {
				seqs++
			}
		}
		if seqs != 10 {
			t.Errorf("%d whole lines in %s", seqs, f.text.String())
		}
	})
}

func TestCloseDoesNotWaitForAFileThatHangs(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		f := newFile()
		f.block = make(chan struct{})
		log := audit.New(f)
		began := time.Now()
		_ = log.Close()
		if took := time.Since(began); took > time.Second {
			t.Errorf("Close took %v", took)
		}
		_ = log.Close()
		close(f.block)
	})
}

// use takes and returns a lock with a log.
func use(t *testing.T, log *audit.Log) {
	t.Helper()
	client := locker.NewClient(memory.NewBackend())
	defer func() { _ = client.Close() }()
	lease, err := locker.Wrap(client, log.Middleware("store")).TryLock(t.Context(), "k")
	if err == nil {
		err = lease.Unlock(t.Context())
	}
	if err != nil {
		t.Error(err)
	}
}

// eventually waits until the file has a line with the text.
func eventually(t *testing.T, path, text string) {
	t.Helper()
	for range 10_000 {
		if got, _ := os.ReadFile(path); strings.Contains(string(got), text) {
			return
		}
		time.Sleep(time.Millisecond) // of a real file
	}
	t.Fatalf("%s has no %s", path, text)
}

func TestAFileThatWasRenamedIsOpenedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := audit.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	use(t, log)
	eventually(t, path, `"released"`)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	use(t, log)
	eventually(t, path, `"released"`)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_ = log.Close()
	for name, want := range map[string]int{path + ".1": 3, path: 1} {
		text, _ := os.ReadFile(name)
		if got := len(parse(t, string(text))); got != want {
			t.Errorf("%s has %d lines, want %d", name, got, want)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestAFullDeviceDoesNoHarm(t *testing.T) {
	log, err := audit.Open("/dev/full")
	if err != nil {
		t.Fatal(err)
	}
	use(t, log)
	if err := log.Close(); err != nil {
		t.Error(err)
	}
}

func TestAPipeWithoutAReaderDoesNoHarm(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := audit.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 { // more than the pipe takes
		use(t, log)
	}
	began := time.Now()
	_ = log.Close()
	if took := time.Since(began); took > time.Minute {
		t.Errorf("Close took %v", took)
	}
}

func TestAFileThatCannotBeIsAnError(t *testing.T) {
	dir := t.TempDir()
	file, loop := filepath.Join(dir, "file"), filepath.Join(dir, "loop")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(loop, loop)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		dir, filepath.Join(dir, "no", "log"), "", filepath.Join(file, "log"), loop,
		filepath.Join(dir, strings.Repeat("x", 999)),
	} {
		if log, err := audit.Open(path); err == nil {
			_ = log.Close()
			t.Errorf("%q was opened", path)
		}
	}
}

// The cost of a line, and that of a record of slog with the same fields.
func BenchmarkLine(b *testing.B) {
	b.Run("audit", func(b *testing.B) {
		log := audit.New(io.Discard)
		defer func() { _ = log.Close() }()
		for b.Loop() {
			audit.WriteForTest(log, 1)
		}
	})
	b.Run("slog", func(b *testing.B) {
		logger := slog.New(slog.NewJSONHandler(io.Discard, nil))
		ctx, now := context.Background(), time.Now()
		for b.Loop() {
			logger.LogAttrs(ctx, slog.LevelInfo, "acquired", audit.AttrsForTest(now)...)
		}
	})
}
