package plain_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"example.com/customdriver/plain"
	"github.com/golocker/locker/drivers"
)

// A server that is no Redis causes an error, whatever it sends. It causes neither a panic nor the allocation of
// gigabytes.
func TestNonsenseIsAnError(t *testing.T) {
	for _, reply := range []string{
		"$9223372036854775807\r\n", "$9223372036854775806\r\n", "$4611686018427387904\r\n", "$2147483648\r\n",
		"$-2\r\n",
		"*9223372036854775807\r\n", "*4611686018427387904\r\n", "*2147483648\r\n", "*-2\r\n",
		"*1\r\n$9223372036854775807\r\n",
		"$99999999999999999999\r\n", ":\r\n", "$\r\n", "\r\n", "\n", "+x\n", "?1\r\n", "$3\r\nabcde",
		"HTTP/1.1 400 Bad Request\r\n\r\n",
		strings.Repeat("*1\r\n", 1_000_000), strings.Repeat("+", 1<<20),
	} {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = c.Read(make([]byte, 100))
				_, _ = c.Write([]byte(reply))
				_ = c.Close()
			}
		}()
		d := plain.New(drivers.Config{Network: "unix", Addr: l.Addr().String()})
		if replies, err := d.Do(t.Context(), drivers.Command{"PING"}); err == nil {
			t.Errorf("%.40q: expected an error, seen %.40q", reply, replies)
		}
		_ = d.Close()
		_ = l.Close()
	}
}
