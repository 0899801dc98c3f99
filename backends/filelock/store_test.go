//go:build linux || darwin

package filelock_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/filelock"
	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/record"
)

// client opens the locks in a directory as another process would.
func client(t *testing.T, dir string) *locker.Client {
	t.Helper()
	l, err := filelock.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func lock(t *testing.T, l locker.Locker, opts ...locker.Option) locker.Lease {
	t.Helper()
	lease, err := l.TryLock(t.Context(), "k", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func unlock(t *testing.T, lease locker.Lease) {
	t.Helper()
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// fails checks that no lock is acquired, because of an error that has certain words.
func fails(t *testing.T, l locker.Locker, words ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := l.TryLock(ctx, "k", locker.TTL(300*time.Millisecond))
	for _, w := range words {
		if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), w) {
			t.Errorf("got %v; want ErrUnavailable with %q", err, w)
		}
	}
}

// names lists the files in a directory.
func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A lock has one file, however often it is acquired. The directory is for its owner alone.
func TestOneFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "locks")
	one, two := client(t, dir), client(t, dir)
	for range 20 {
		unlock(t, lock(t, one))
		unlock(t, lock(t, two))
	}
	if got := names(t, dir); !slices.Equal(got, []string{"lock=3ak"}) {
		t.Errorf("the files are %q", got)
	}
	for path, want := range map[string]fs.FileMode{dir: 0o700, filepath.Join(dir, "lock=3ak"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has the mode %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

// What a process leaves behind that was killed while it wrote, or a power cut, is in nobody's way.
func TestLeftovers(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"an empty record":            {"lock=3ak": ""},
		"a record of zeros":          {"lock=3ak": strings.Repeat("\x00", 300)},
		"a new file without a place": {"lock=3ak": "", "lock=3ak.new": `{"locker":1,"sta`},
		"a new file and no record":   {"lock=3ak.new": `{"locker":1,"sta`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for name, text := range files {
				write(t, filepath.Join(dir, name), text)
			}
			l := client(t, dir)
			unlock(t, lock(t, l))
			unlock(t, lock(t, l))
			if got := names(t, dir); !slices.Equal(got, []string{"lock=3ak"}) {
				t.Errorf("the files are %q", got)
			}
		})
	}
}

// A record of another kernel may be of this machine before a restart, or of another one that goes on: a volume has
// moved. Its time counts from the first look, also for processes that look once.
func TestRecordOfAnotherKernel(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	const ttl = 100 * time.Millisecond
	first := lock(t, client(t, dir), locker.TTL(ttl), locker.NoRenewal())
	s := open(t, dir)
	defer s.Close()
	id, _ := s.Clock()
	path := filepath.Join(dir, "lock=3ak")
	text, err := os.ReadFile(path)
	if err != nil || id == "" || !strings.Contains(string(text), id) {
		t.Fatalf("the record is %s, %v; want the id %q in it", text, err, id)
	}
	<-time.After(2 * ttl)
	write(t, path, strings.ReplaceAll(string(text), id, strings.Repeat("0", len(id))))
	if _, err := client(t, dir).TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
		t.Errorf("the first look: %v", err)
	}
	<-time.After(2 * ttl)
	if next := lock(t, client(t, dir)); next.Fence() <= first.Fence() {
		t.Errorf("token %d after %d", next.Fence(), first.Fence())
	}
}

// A process that looks for the first time knows since when a lock is held, by the clock of the machine.
func TestInspection(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	start := time.Now()
	lock(t, client(t, dir), locker.TTL(time.Minute), locker.NoRenewal())
	<-time.After(50 * time.Millisecond)
	i, err := client(t, dir).Inspect(t.Context(), "k")
	if most := time.Since(start); err != nil || i.State != inspect.Held || i.Held < 49*time.Millisecond || i.Held > most ||
		i.Remaining > time.Minute { // the record counts in milliseconds
		t.Errorf("%+v, %v; want it held for up to %v", i, err, most)
	}
}

// A process that was stopped while it wrote a record keeps others waiting for that lock only, and not beyond their
// contexts.
func TestStoppedWriter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	l := client(t, dir)
	unlock(t, lock(t, l))
	writer, err := os.Open(filepath.Join(dir, "lock=3ak"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(writer.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	fails(t, l, "another process writes", "whether it is stopped")
	if lease, err := l.TryLock(t.Context(), "other"); err != nil {
		t.Error(err)
	} else {
		unlock(t, lease)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := l.Lock(ctx, "k"); err != nil {
		t.Error(err)
	}
}

// Two generations of a directory do not exclude each other. A process that has the former one acquires nothing, and
// whoever holds a lock there learns with the next renewal that it is lost.
func TestDirectoryIsReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	l := client(t, dir)
	first, err := l.TryLock(t.Context(), "first", locker.NoRenewal())
	if err != nil {
		t.Fatal(err)
	}
	second, err := l.TryLock(t.Context(), "second", locker.NoRenewal())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	fails(t, l, "no such file or directory", "make the directory again")
	if err := first.Extend(t.Context()); !errors.Is(err, locker.ErrLost) {
		t.Errorf("no directory: %v", err)
	}
	unlock(t, lock(t, client(t, dir)))
	fails(t, l, "is not the one that was opened", "restart the program")
	if err := second.Extend(t.Context()); !errors.Is(err, locker.ErrLost) {
		t.Errorf("another directory: %v", err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.Rename(dir+".away", dir)); err != nil {
		t.Fatal(err)
	}
	steady.Unlock(t, lock(t, l))
}

// If it cannot be told whether the directory is still there, its locks are not lost.
func TestDirectoryCannotBeReached(t *testing.T) {
	base := filepath.Join(t.TempDir(), "disk")
	l := client(t, filepath.Join(base, "locks"))
	lease := lock(t, l, locker.NoRenewal())
	if err := errors.Join(os.Rename(base, base+".away"), os.WriteFile(base, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := lease.Extend(t.Context()); !errors.Is(err, locker.ErrUnavailable) {
		t.Error(err)
	}
	if err := errors.Join(os.Remove(base), os.Rename(base+".away", base)); err != nil {
		t.Fatal(err)
	}
	if err := lease.Extend(t.Context()); err != nil {
		t.Error(err)
	}
	unlock(t, lease)
}

// A process that is being started has copies of all descriptors. They keep no file locked.
func TestCopiesOfDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, "")
	locks := func() *os.File {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := filelock.TryLock(f); !ok || err != nil {
			t.Fatalf("the file is locked: %v, %v", ok, err)
		}
		return f
	}
	f := locks()
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	filelock.Unlock(f)
	filelock.Unlock(locks())
}

// Users of one group share a directory that has the mode for it, whatever their umasks are. Those who may only read it
// get no rights: whoever reads a file could lock it for ever.
func TestGroups(t *testing.T) {
	umask := syscall.Umask(0o077)
	defer syscall.Umask(umask)
	for mode, want := range map[fs.FileMode]fs.FileMode{0o775 | fs.ModeSetgid: 0o660, 0o755: 0o600} {
		dir := filepath.Join(t.TempDir(), "locks")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		l := client(t, dir)
		for range 2 { // Create and Replace
			lease := lock(t, l)
			if info, err := os.Stat(filepath.Join(dir, "lock=3ak")); err != nil || info.Mode().Perm() != want {
				t.Errorf("in a directory with the mode %v, the file has %v, %v; want %v", mode, info.Mode(), err, want)
			}
			unlock(t, lease)
		}
	}
}

// A file comes to its place with its rights. If its maker is killed before it has given them, nobody else in the group
// could open it.
func TestFilesComeWithTheirRights(t *testing.T) {
	umask := syscall.Umask(0o077)
	defer syscall.Umask(umask)
	dir := filepath.Join(t.TempDir(), "locks")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o770|fs.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	defer s.Close()
	for i := range 100 {
		name := fmt.Sprint("k", i)
		modes := make(chan fs.FileMode, 1)
		go func() {
			for t.Context().Err() == nil {
				if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
					modes <- info.Mode().Perm()
					return
				}
			}
		}()
		if _, err := s.Create(t.Context(), name, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if mode := <-modes; mode != 0o660 {
			t.Fatalf("file %d had the mode %v", i, mode)
		}
	}
	if got := names(t, dir); len(got) != 100 {
		t.Errorf("there are %d files", len(got))
	}
}

func TestDirectoriesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "")
	with := func(name string, mode fs.FileMode) string {
		dir := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	groups := with("a group's, whose files are not", 0o770)
	for dir, want := range map[string]string{
		"":                                       "the name of the directory is empty",
		with("everybody's", 0o777|fs.ModeSticky): "every user of this machine may write in it",
		with("a group's", 0o770|fs.ModeSetgid|fs.ModeSticky): "not replace the files of others",
		groups:                     "could not read the files",
		filepath.Join(dir, "file"): "not a directory",
		"/proc":                    "of type 0x9fa0, which other machines may share",
	} {
		if (dir == "/proc" || dir == groups) && runtime.GOOS != "linux" {
			continue
		}
		if _, err := filelock.OpenStore(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v; want %q", dir, err, want)
		}
	}
}

// Root does not use a directory that belongs to another user, who may have made it for that.
func TestRootAndTheDirectoryOfAnotherUser(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 { // only root can give a directory away, and it can read all others
		return
	}
	for mode, want := range map[fs.FileMode]string{
		0o700: "it belongs to another user", 0o755: "run as that user", 0o770 | fs.ModeSetgid: "",
	} {
		if err := errors.Join(os.Chown(dir, 65534, 0), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		s, err := filelock.OpenStore(dir)
		switch {
		case want == "" && err == nil:
			_ = s.Close()
		case want == "" || err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("mode %v: got %v; want %q", mode, err, want)
		}
	}
}

// Errors of the system say what to do.
func TestAdvice(t *testing.T) {
	for err, want := range map[error]string{
		syscall.EACCES: "let this user read and write", syscall.EROFS: "can be written", syscall.ENOSPC: "make room",
		syscall.EMFILE: "ulimit -n", syscall.ENFILE: "fs.file-max", syscall.EDQUOT: "quota",
		syscall.ENOENT: "make the directory again",
	} {
		err = fmt.Errorf("open: %w", &fs.PathError{Op: "open", Path: "/x", Err: err})
		if got := filelock.Advised(err); !errors.Is(got, err) || !strings.Contains(got.Error(), want) {
			t.Errorf("got %v; want %q", got, want)
		}
	}
}

// If the new text cannot be written, as on a full disk, the former one stays whole.
func TestFailedWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	l := client(t, dir)
	lease := lock(t, l)
	path := filepath.Join(dir, "lock=3ak")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path+".new", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := lease.Extend(t.Context()); !errors.Is(err, locker.ErrUnavailable) {
		t.Error(err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the record is %s, %v; want %s", after, err, before)
	}
	if err := os.RemoveAll(path + ".new"); err != nil {
		t.Fatal(err)
	}
	if err := lease.Extend(t.Context()); err != nil {
		t.Error(err)
	}
	unlock(t, lease)
}

// A record is neither read through a symbolic link nor from a pipe.
func TestOtherKindsOfFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	l := client(t, dir)
	for name, place := range map[string]func(path string) error{
		"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		if err := place(filepath.Join(dir, "lock=3ak")); err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrUnavailable) {
			t.Errorf("a %s: %v", name, err)
		}
		if err := os.Remove(filepath.Join(dir, "lock=3ak")); err != nil {
			t.Fatal(err)
		}
	}
}

// Whoever gets a Store, and not a Client, has the same locks, if the prefix is the same.
func TestStoreAndClient(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	lock(t, client(t, dir))
	other := record.New(open(t, dir), record.Prefix(filelock.DefaultPrefix))
	defer other.Close()
	if _, err := other.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrHeld) {
		t.Error(err)
	}
}
