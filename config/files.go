package config

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
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
