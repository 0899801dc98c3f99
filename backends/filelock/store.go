package filelock

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/record"
)

// Store keeps each record in a file of its name. It implements record.Store, record.Clock and
// record.Watcher.
//
// The file of a record is also what writers lock (flock), and a writer puts another file in its place (rename). So
// whoever has locked a file that is still in its place is the only one who may replace it. Whoever has locked one that
// is not there any more begins anew. If a process is killed, the kernel unlocks its files, and what it has written so
// far is in a file NAME.new, which the next writer of the record removes. An empty file is no record: Create makes one,
// to have something to lock. It may leave an empty file NAME.123, which does no harm.
//
// Nothing is written through to the disk (fsync), because a power cut ends all holders, too. The file system may then
// have lost the last records, or have a file that is empty or all zeros, which is no record either. Tokens go on from
// the time of day. A file that is damaged in another way is no lock, and has to be removed. On a disk that fails, or a
// pool that is full, a running machine may come to read zeros, too: locks on such a file system cannot be relied on.
type Store struct {
	dir   string
	root  *os.File      // the directory, open so that the kernel does not forget its number
	was   fs.FileInfo   // the same
	mode  fs.FileMode   // of files
	calls chan struct{} // has an element for each call in progress

	notices notices
}

const (
	// ownDir is the mode of directories that OpenStore makes.
	ownDir = 0o700

	// maxCalls bounds the calls in progress, each of which has a thread while the file system hangs.
	maxCalls = 1000

	// maxText is how much of a file is read. Records are shorter.
	maxText = 64 << 10

	// grace is for a call whose context has ended, to say what it was waiting for.
	grace = 5 * time.Millisecond
)

// OpenStore returns a Store of records in the directory dir, which it makes if there is none, for this user alone. It
// fails if the directory cannot be used: on operating systems but Linux and macOS, on a file system that other machines
// may share, such as NFS, if every user may write in it, and for root, if it belongs to another user alone.
//
// For users of one group, make the directory beforehand, with the mode 2770. Files then are for the group, too.
// OpenStore also fails if a group may write in the directory, but could not use the files of each other: with the
// sticky bit, or on Linux without the setgid bit.
func OpenStore(dir string) (*Store, error) {
	if dir == "" {
		return nil, errors.New("file: the name of the directory is empty")
	}
	fail := func(err error) (*Store, error) { return nil, fmt.Errorf("file: directory %s: %w", dir, err) }
	if err := supported(); err != nil {
		return fail(err)
	}
	abs, err := filepath.Abs(dir) // the working directory may change
	if err != nil {
		return fail(err)
	}
	if err := os.MkdirAll(abs, ownDir); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fail(fmt.Errorf("%w: no directory can be made there: give another one", err))
	} else if err != nil {
		return fail(advised(err))
	}
	root, err := os.Open(abs)
	if err != nil {
		return fail(advised(err))
	}
	was, err := root.Stat()
	if err == nil {
		err = private(was)
	}
	if err == nil {
		err = local(root)
	}
	if err != nil {
		_ = root.Close()
		return fail(err)
	}
	mode := fs.FileMode(0o600)
	if was.Mode()&0o020 != 0 {
		mode = 0o660
	}
	return &Store{
		dir: abs, root: root, was: was, mode: mode, calls: make(chan struct{}, maxCalls),
		notices: notices{open: func() (*os.File, error) { return notify(abs) }},
	}, nil
}

// private returns an error if others may take locks away. Root is the only one who could use the directory of another
// user without a group: one that somebody else has made in /tmp, or one whose user could then not read the files.
func private(dir fs.FileInfo) error {
	switch rights := dir.Mode().Perm(); {
	case rights&0o002 != 0:
		return errors.New("every user of this machine may write in it, and so take locks away: chmod o-w, or give another " +
			"one")
	case rights&0o020 != 0 && dir.Mode()&fs.ModeSticky != 0:
		return errors.New("its group may write in it, but not replace the files of others: chmod -t, or chmod g-w")
	case rights&0o020 != 0 && dir.Mode()&fs.ModeSetgid == 0 && runtime.GOOS == "linux":
		return errors.New("its group may write in it, but could not read the files, which get other groups: chmod g+s, or " +
			"chmod g-w")
	case os.Geteuid() == 0 && owner(dir) != 0 && rights&0o020 == 0:
		return errors.New("it belongs to another user, who could not read what root writes there: run as that user, or " +
			"give another one")
	}
	return nil
}

// Examine implements inspect.Examiner.
func (s *Store) Examine(context.Context) []inspect.Finding {
	f := inspect.Finding{Check: "directory", Level: inspect.OK, Text: s.dir}
	if layered(s.root) {
		f.Level = inspect.Warn
		f.Text = s.dir + " is on an overlay, as the layer of a container is: other containers do not see it"
		f.Fix = "mount a volume there, if locks are for several containers"
	}
	return []inspect.Finding{f}
}

// Close implements io.Closer. It is called when a Backend of the Store is closed.
func (s *Store) Close() error {
	s.notices.close()
	return s.root.Close()
}

// result is the answer of a call.
type result struct {
	text    []byte
	version string
	err     error
}

// do makes a call, whose caller waits until ctx ends. The call may go on: a file system hangs if its disk does.
func (s *Store) do(ctx context.Context, call func() result) result {
	if err := ctx.Err(); err != nil {
		return result{err: err}
	}
	select {
	case s.calls <- struct{}{}:
	case <-ctx.Done():
		return result{err: fmt.Errorf("file: the file system does not answer %d other calls: %w", maxCalls, ctx.Err())}
	}
	done := make(chan result, 1)
	go func() {
		r := call()
		if r.err != nil && !errors.Is(r.err, record.ErrConflict) {
			r = result{err: fmt.Errorf("file: %w", advised(r.err))}
		}
		<-s.calls
		done <- r
	}()
	select {
	case r := <-done:
		return r
	case <-ctx.Done():
	}
	last := time.NewTimer(grace)
	defer last.Stop()
	select {
	case r := <-done:
		return r
	case <-last.C:
		return result{err: fmt.Errorf("file: the file system does not answer: %w", ctx.Err())}
	}
}

var errReplaced = errors.New("is not the one that was opened: somebody has replaced it, or mounted something there: " +
	"restart the program")

// same returns an error if another directory is in the place of the one that was opened, or none; gone tells whether it
// is so. Processes that have opened different ones do not exclude each other. So no record is created then, and the
// others do not exist any more: whoever has a lock learns with its next renewal that it is lost.
func (s *Store) same() error {
	is, err := os.Stat(s.dir)
	if err == nil && !os.SameFile(s.was, is) {
		err = fmt.Errorf("directory %s %w", s.dir, errReplaced)
	}
	return err
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errReplaced) }

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Store) get(name string) result {
	var f *os.File
	err := s.same()
	if err == nil {
		f, err = open(s.path(name), os.O_RDONLY, 0)
	}
	switch {
	case gone(err):
		return result{}
	case err != nil:
		return result{err: err}
	}
	defer f.Close()
	return read(f)
}

// read reads a record.
func read(f *os.File) result {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file: remove it", f.Name())
	}
	if err != nil {
		return result{err: err}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxText))
	switch {
	case err != nil:
		return result{err: err}
	case len(bytes.Trim(text, "\x00")) == 0:
		return result{}
	}
	return result{text: text, version: versionOf(text)}
}

func versionOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// put stores a text if the version of the record is the given one.
func (s *Store) put(ctx context.Context, name, version string, text []byte) result {
	path := s.path(name)
	var f *os.File
	err := s.same()
	if err == nil {
		f, err = s.lock(ctx, path, version == "")
	}
	switch {
	case gone(err) && version != "":
		return result{err: record.ErrConflict}
	case err != nil:
		return result{err: err}
	}
	defer unlock(f)
	switch found := read(f); {
	case found.err != nil:
		return found
	case found.version != version:
		return result{err: record.ErrConflict}
	case ctx.Err() != nil:
		return result{err: ctx.Err()}
	}
	if err := s.replace(path, text); err != nil {
		return result{err: err}
	}
	return result{version: versionOf(text)}
}

// Pauses between two tries to lock a file that another writer has locked, which takes it some 100 µs.
const (
	firstPause = 100 * time.Microsecond
	lastPause  = 10 * time.Millisecond
)

// lock opens the file of a record and locks it. If there is none, it makes an empty one, if it is to create one.
func (s *Store) lock(ctx context.Context, path string, create bool) (*os.File, error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		f, err := open(path, os.O_RDONLY, 0)
		if create && errors.Is(err, fs.ErrNotExist) {
			if err = s.create(path); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		locked, err := tryLock(f)
		if err == nil && locked {
			var in bool
			if in, err = inPlace(f, path); in {
				return f, nil
			}
		}
		unlock(f)
		if err != nil {
			return nil, err
		}
		if locked {
			pause = firstPause // it was replaced meanwhile
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("another process writes %s, and does not come to an end: look whether it is stopped: %w",
				path, ctx.Err())
		}
	}
}

// create makes an empty file, unless there is one already. It comes to its place when it has its rights: a process that
// is killed before would otherwise leave one that no other user of the group could open.
func (s *Store) create(path string) error {
	f, err := os.CreateTemp(s.dir, filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(s.allow(f), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// inPlace reports whether f is the file of that path.
func inPlace(f *os.File, path string) (bool, error) {
	own, err := f.Stat()
	if err != nil {
		return false, err
	}
	is, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(own, is), err
}

// allow gives others of the group their rights to a file, which the umask of the process has taken from them.
func (s *Store) allow(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Mode().Perm() == s.mode {
		return err
	}
	return f.Chmod(s.mode)
}

// replace puts a file with the text in the place of the one of that path, which the caller has locked.
func (s *Store) replace(path string, text []byte) error {
	next := path + ".new"
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := open(next, flags, s.mode)
	if errors.Is(err, fs.ErrExist) { // of a process that was killed
		if err = os.Remove(next); err == nil {
			f, err = open(next, flags, s.mode)
		}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, s.allow(f), f.Close())
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next)
	}
	return err
}

// advised adds to an error of the system what to do about it.
func advised(err error) error {
	for cause, do := range advice {
		if errors.Is(err, cause) {
			return fmt.Errorf("%w: %s", err, do)
		}
	}
	return err
}
