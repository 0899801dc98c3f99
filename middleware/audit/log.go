package audit

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/golocker/locker/internal/core/label"
)

const (
	// bufferSize is how many bytes of lines wait to be written at most, beside as many that are being written.
	bufferSize = 1 << 20

	// again is the pause after lines could not be written.
	again = time.Second

	// closeGrace is how long Close waits for calls that have not returned, and after that for the file.
	closeGrace = time.Second / 2
)

// Log is an audit log. Create one with [Open] or [New], and close it when the Clients that it logs are closed. It is
// safe for concurrent use.
type Log struct {
	hashKeys bool
	process  string
	start    time.Time
	to       io.WriteCloser

	mu      sync.Mutex
	seq     uint64
	buffer  []byte
	dropped uint64 // since the last line that says so
	writing bool   // a goroutine writes, until nothing is left
	calls   uint64 // under way, each of which adds a line when it returns
	closing bool
	closed  bool

	idle chan struct{} // closed when no call is under way, while Close waits for that
	last chan struct{} // closed when no line is added any more
	over chan struct{} // closed when nothing is written after that any more
}

// Option changes a [Log].
type Option func(*Log)

// HashKeys writes the SHA-256 of keys, cut to 128 bits, instead of keys. Whoever can guess a key finds it by its hash.
// Of errors, only what this library and the operating system say is written, because others may have the key in them.
func HashKeys() Option { return func(l *Log) { l.hashKeys = true } }

// Open returns a Log that appends lines to the file path, which several processes may share. If the file is renamed or
// removed, it goes on in a new one. It returns an error if there can be no such file, and none if the disk is full. A
// pipe need not have a reader yet.
func Open(path string, opts ...Option) (*Log, error) {
	f := &file{path: path}
	if _, err := f.open(); err != nil {
		var of interface{ Temporary() bool } // too many open files, for example
		if full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT); !full &&
			(!errors.As(err, &of) || !of.Temporary()) {
			return nil, fmt.Errorf("audit: %w", err)
		}
	}
	return newLog(f, opts), nil
}

// New returns a Log that writes to w, from a goroutine of its own. Each call of Write has whole lines. After an error,
// the rest is written again after a second.
func New(w io.Writer, opts ...Option) *Log { return newLog(writer{w}, opts) }

type writer struct{ io.Writer }

func (writer) Close() error { return nil }

func newLog(to io.WriteCloser, opts []Option) *Log {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	l := &Log{
		process: hex.EncodeToString(id[:]), start: time.Now(), to: to,
		last: make(chan struct{}), over: make(chan struct{}),
	}
	for _, opt := range opts {
		opt(l)
	}
	l.add(&Line{Event: Start, Label: label.Default}, l.start)
	return l
}

// Close waits for calls that have not returned, writes what is left, and a line that says that the log is complete. It
// returns after a second at most, even if the file cannot be written. Calls that return later count as missing lines.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		return nil
	}
	l.closing = true
	if l.calls > 0 {
		idle := make(chan struct{})
		l.idle = idle
		l.mu.Unlock()
		select {
		case <-idle:
		case <-time.After(closeGrace):
		}
		l.mu.Lock()
	}
	l.seq += l.calls
	l.dropped += l.calls
	l.tellDropped()
	l.append(&Line{Event: Close}, time.Now())
	l.closed = true
	close(l.last)
	l.begin()
	l.mu.Unlock()
	select {
	case <-l.over:
	case <-time.After(closeGrace):
		go func() { _ = l.to.Close() }() // which ends the wait for the reader of a pipe
	}
	return nil
}

// call says that a call begins, which adds a line. What it returns is to be called when it has done that.
func (l *Log) call() (ends func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	return l.returned
}

func (l *Log) returned() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls--; l.calls == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// add adds a line about something that has happened, as a call that was made at asked, or unless there was one, now.
func (l *Log) add(line *Line, asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
	case len(l.buffer) >= bufferSize:
		l.seq++
		l.dropped++
	default:
		l.tellDropped()
		l.append(line, asked)
		l.begin()
	}
}

// begin makes sure that the buffer is written. Call with mu held.
func (l *Log) begin() {
	if !l.writing {
		l.writing = true
		go l.write()
	}
}

// tellDropped adds a line if lines are missing. Call with mu held.
func (l *Log) tellDropped() {
	if l.dropped > 0 {
		l.append(&Line{Event: Dropped, Missing: l.dropped}, time.Now())
		l.dropped = 0
	}
}

// append adds a line to the buffer. Call with mu held.
func (l *Log) append(line *Line, asked time.Time) {
	l.seq++
	line.Version, line.Process, line.Seq = Version, l.process, l.seq
	if line.Answered.IsZero() {
		line.Answered = asked
	}
	line.Asked = asked
	line.AskedMono, line.AnsweredMono = asked.Sub(l.start), line.Answered.Sub(l.start)
	if !line.Until.IsZero() {
		line.UntilMono = line.Until.Sub(l.start)
	}
	text, _ := json.Marshal(line) // it has only times of this century, and fields that fit
	l.buffer = append(append(l.buffer, text...), '\n')
}

// write writes until nothing is left.
func (l *Log) write() {
	var lines, spare []byte
	torn := false // the last write has ended within a line, which is written again
	for {
		l.mu.Lock()
		if len(lines) == 0 {
			lines, l.buffer = l.buffer, spare[:0]
			spare = lines
		}
		closed := l.closed
		if len(lines) == 0 {
			l.end()
			return
		}
		l.mu.Unlock()
		var err error
		if torn {
			_, err = l.to.Write([]byte{'\n'})
			torn = err != nil
		}
		if err == nil {
			var n int
			if n, err = l.to.Write(lines); err != nil {
				whole := bytes.LastIndexByte(lines[:n], '\n') + 1
				torn = whole < n
				n = whole
			}
			lines = lines[n:]
		}
		if err == nil {
			continue
		}
		if closed {
			l.mu.Lock()
			l.end()
			return
		}
		retry := time.NewTimer(again)
		select {
		case <-retry.C:
		case <-l.last:
			retry.Stop()
		}
	}
}

// end records that nothing is written. Call with mu held, which it gives back.
func (l *Log) end() {
	l.writing = false
	closed := l.closed
	l.mu.Unlock()
	if closed {
		_ = l.to.Close()
		close(l.over)
	}
}

// file is a file that is opened again when it has another name, or cannot be written. Each call to the system may hang,
// so none is made with mu held.
type file struct {
	path string

	mu     sync.Mutex
	f      *os.File // nil if it has to be opened
	closed bool
}

// current returns the file that has the name now.
func (o *file) current() (*os.File, error) {
	o.mu.Lock()
	f, closed := o.f, o.closed
	o.mu.Unlock()
	if closed { // whoever has closed it may have removed it, and it must not come back
		return nil, os.ErrClosed
	}
	if f == nil {
		return o.open()
	}
	own, err := f.Stat()
	if now, nowErr := os.Stat(o.path); err == nil && nowErr == nil && os.SameFile(own, now) {
		return f, nil
	}
	o.drop(f)
	return o.open()
}

// open opens the file. Of a pipe it is a reader, too, so that it does not wait for one, and does not fail if there is
// none any more.
func (o *file) open() (*os.File, error) {
	flags := os.O_APPEND | os.O_CREATE | os.O_WRONLY
	if info, err := os.Stat(o.path); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		flags = os.O_RDWR
	}
	f, err := os.OpenFile(o.path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		go func() { _ = f.Close() }()
		return nil, os.ErrClosed
	}
	o.f = f
	return f, nil
}

func (o *file) Write(lines []byte) (int, error) {
	f, err := o.current()
	if err != nil {
		return 0, err
	}
	n, err := f.Write(lines)
	if err != nil {
		o.drop(f)
	}
	return n, err
}

// drop closes the file, which will be opened again.
func (o *file) drop(f *os.File) {
	o.mu.Lock()
	o.f = nil
	o.mu.Unlock()
	_ = f.Close()
}

func (o *file) Close() error {
	o.mu.Lock()
	o.closed = true
	f := o.f
	o.mu.Unlock()
	if f == nil {
		return nil
	}
	return f.Close()
}
