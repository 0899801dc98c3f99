package fault

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// errMalformed is the error for bytes that are not the protocol as this package understands it. It differs from errors
// of the connection, which are a normal part of tests with this package.
var errMalformed = errors.New("malformed frame")

// maxLen is the largest length that is accepted. It is Redis's own limit for a string.
const maxLen = 512 << 20

// readRequest reads one request, an array of bulk strings. Inline commands ("PING\r\n") count as malformed, because no
// client sends them.
func readRequest(r *bufio.Reader) (raw []byte, args []string, err error) {
	raw, n, err := appendHeader(nil, r, '*')
	if err == nil && n < 1 {
		err = fmt.Errorf("%w: request %q", errMalformed, raw)
	}
	for i := 0; err == nil && i < n; i++ {
		var size int
		if raw, size, err = appendHeader(raw, r, '$'); err == nil {
			start := len(raw)
			if raw, err = appendBody(raw, r, size); err == nil {
				args = append(args, string(raw[start:start+size]))
			}
		}
	}
	return raw, args, err
}

// appendHeader reads a line that announces a length and must have the given type.
func appendHeader(dst []byte, r *bufio.Reader, want byte) ([]byte, int, error) {
	line, err := readLine(r)
	if err != nil {
		return dst, 0, err
	}
	n, err := length(line)
	if err == nil && (line[0] != want || n < 0) {
		err = fmt.Errorf("%w: %q in a request, want %q", errMalformed, line, want)
	}
	return append(dst, line...), n, err
}

// frame is one reply or push, byte for byte as the server sent it.
type frame []byte

func readFrame(r *bufio.Reader) (frame, error) { return appendFrame(nil, r) }

func appendFrame(dst frame, r *bufio.Reader) (frame, error) {
	line, err := readLine(r)
	if err != nil {
		return dst, err
	}
	dst = append(dst, line...)
	children := 0
	switch line[0] {
	case '+', '-', ':', '_', '#', ',', '(':
		return dst, nil
	case '$', '=', '!':
		n, err := length(line)
		if err != nil || n < 0 {
			return dst, err
		}
		return appendBody(dst, r, n)
	case '*', '~', '>':
		children, err = length(line)
	case '%', '|':
		children, err = length(line)
		children *= 2
	default:
		err = fmt.Errorf("%w: type of %q", errMalformed, line)
	}
	for i := 0; err == nil && i < children; i++ {
		dst, err = appendFrame(dst, r)
	}
	return dst, err
}

// readLine returns a line with its CRLF and at least one byte before it.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err == nil && (len(line) < 3 || line[len(line)-2] != '\r') {
		err = fmt.Errorf("%w: line %q", errMalformed, line)
	}
	return line, err
}

// length returns the number after the type byte. It is -1 for RESP2's nil. Streamed frames ("$?") count as malformed,
// because no version of Redis sends them.
func length(line []byte) (int, error) {
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil || n < -1 || n > maxLen {
		return 0, fmt.Errorf("%w: length in %q", errMalformed, line)
	}
	return n, nil
}

// appendBody reads n bytes and the CRLF behind them. The bytes may contain a CRLF, too.
func appendBody(dst []byte, r *bufio.Reader, n int) ([]byte, error) {
	start := len(dst)
	dst = slices.Grow(dst, n+2)[:start+n+2]
	_, err := io.ReadFull(r, dst[start:])
	if err == nil && !bytes.HasSuffix(dst[start:], []byte("\r\n")) {
		err = fmt.Errorf("%w: no CRLF behind %d bytes", errMalformed, n)
	}
	return dst, err
}

// outOfBand reports whether the type of the frame shows that it is no reply. It is then a push, or an attribute, which
// precedes a reply.
func (f frame) outOfBand() bool { return f[0] == '>' || f[0] == '|' }

// label returns the first element of an array or push if it is a string. In pub/sub frames it is their kind.
func (f frame) label() string {
	if f[0] != '*' && f[0] != '>' {
		return ""
	}
	lines := strings.SplitN(string(f), "\r\n", 4)
	if len(lines) < 4 || !strings.HasPrefix(lines[1], "$") {
		return ""
	}
	return lines[2]
}
