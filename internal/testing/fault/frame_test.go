package fault

import (
	"bufio"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func reader(s string) *bufio.Reader { return bufio.NewReaderSize(strings.NewReader(s), 16) }

func TestReadFrame(t *testing.T) {
	frames := []string{
		"+OK\r\n", "+a simple string longer than the buffer of the reader\r\n", "-ERR no\r\n", ":-12\r\n",
		"$0\r\n\r\n", "$4\r\na\r\nb\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "*2\r\n:1\r\n*1\r\n$1\r\nx\r\n",
		"%1\r\n+k\r\n*1\r\n:1\r\n", "~2\r\n:1\r\n:2\r\n", ">2\r\n$10\r\ninvalidate\r\n_\r\n", "#t\r\n", ",1.5\r\n",
		"(12345678901234567890\r\n", "=7\r\ntxt:abc\r\n", "!5\r\nERR x\r\n", "_\r\n", "|1\r\n+k\r\n:1\r\n",
	}
	r := reader(strings.Join(frames, ""))
	for _, want := range frames {
		got, err := readFrame(r)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
}

func TestReadFrameRejects(t *testing.T) {
	for _, s := range []string{"?\r\n", "+OK\n", "\r\n", "$?\r\n", "$-2\r\n", "$2\r\nabc\r\n", "*1\r\nx\r\n",
		"$999999999999\r\n"} {
		_, err := readFrame(reader(s))
		assert.ErrorIs(t, err, errMalformed, "%q", s)
	}
	for _, s := range []string{"", "+OK", "$4\r\nab", "*2\r\n:1\r\n"} {
		_, err := readFrame(reader(s))
		assert.Error(t, err, "%q", s)
		assert.NotErrorIs(t, err, errMalformed, "%q", s)
	}
}

func TestReadRequest(t *testing.T) {
	const s = "*2\r\n$3\r\nGET\r\n$4\r\n\r\n\r\n\r\n"
	raw, args, err := readRequest(reader(s + "*1\r\n"))
	require.NoError(t, err)
	assert.Equal(t, s, string(raw))
	assert.Equal(t, []string{"GET", "\r\n\r\n"}, args)
	for _, s := range []string{"PING\r\n", "*0\r\n", "*-1\r\n", "*1\r\n:1\r\n", "*1\r\n$-1\r\n"} {
		_, _, err := readRequest(reader(s))
		assert.ErrorIs(t, err, errMalformed, "%q", s)
	}
}

func TestLabel(t *testing.T) {
	for s, want := range map[string]string{
		"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nb\r\n": "message",
		">1\r\n$10\r\ninvalidate\r\n":                   "invalidate",
		"*1\r\n:1\r\n":                                  "",
		"*0\r\n":                                        "",
		"$7\r\nmessage\r\n":                             "",
	} {
		assert.Equal(t, want, frame(s).label(), "%q", s)
	}
}
