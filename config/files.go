package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
)

// fileError is a failure to read a file, in words for the operator.
type fileError struct {
	text string
	err  error
}

func (e *fileError) Error() string { return e.text }
func (e *fileError) Unwrap() error { return e.err }

// byteOrderMark is what some editors put at the beginning of a file. It is not part of a password or a certificate.
var byteOrderMark = []byte("\ufeff")

// readFile returns the content of a file, without a byte order mark.
func readFile(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	switch {
	case err == nil:
		return bytes.TrimPrefix(data, byteOrderMark), nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, &fileError{"file not found: " + path, err}
	case errors.Is(err, fs.ErrPermission):
		return nil, &fileError{"no permission to read " + path, err}
	}
	return nil, err
}

// reread reads a value from files each time it is asked for, because the files may be replaced while the program runs.
// While the files cannot be used, for example because one of them is half written, it returns the last good value.
type reread[T any] struct {
	setting string // the name of the setting, for the log
	read    func() (T, error)
	logger  *slog.Logger // is told of files that cannot be used; nil: nobody is

	mu      sync.Mutex
	good    T
	problem string // that was logged last; empty: the files were all right
}

// begin reads the files for the first time.
func (r *reread[T]) begin() (err error) {
	r.good, err = r.read()
	return err
}

func (r *reread[T]) get() T {
	v, problem, changed := r.again()
	if problem != "" && changed && r.logger != nil { // without mu, because a log handler may open a connection, too
		r.logger.Warn("a file of the configuration cannot be used: new connections use what it contained before",
			"setting", r.setting, "error", problem)
	}
	return v
}

// again reads the files again. It returns the value to use, what is wrong with the files, and whether that is news.
func (r *reread[T]) again() (good T, problem string, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, err := r.read()
	if err == nil {
		r.good = v
	} else {
		problem = err.Error()
	}
	changed = problem != r.problem
	r.problem = problem
	return r.good, problem, changed
}

// PasswordFile reads a file with a password, and returns a function that reads it again, for each new connection. The
// password is the content without newlines at its end. While the file cannot be read, or is empty, the function returns
// what the file contained before. It may be called concurrently. PasswordFile is for backends that are registered by
// other packages.
func PasswordFile(file string) (read func() string, err error) {
	r := &reread[string]{read: func() (string, error) { return readPassword(file) }}
	if err := r.begin(); err != nil {
		return nil, err
	}
	return r.get, nil
}

func readPassword(file string) (string, error) {
	data, err := readFile(file)
	if err != nil {
		return "", err
	}
	password := strings.TrimRight(string(data), "\r\n")
	if password == "" {
		return "", fmt.Errorf("%s is empty", file)
	}
	return password, nil
}
