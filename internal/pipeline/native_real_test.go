package pipeline

import (
	"context"
	"regexp"
	"testing"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
	"github.com/golocker/locker/internal/testing/redistest"
)

// nativeOf returns the command with which a server releases a lock without a script, or an empty string.
func nativeOf(t *testing.T, s *redistest.Server) string {
	t.Helper()
	for _, name := range []string{"delex", "delifeq"} {
		if s.Knows(t, name) {
			return name
		}
	}
	return ""
}

// Releases that are alone are right on every server, with the commands that it knows and the user may use.
func TestNativeReleaseOnARealServer(t *testing.T) {
	const text, absent = "0000000000000005|o|1|web-7", "no key"
	for _, granted := range []bool{true, false} {
		s := redistest.Start(t)
		native := nativeOf(t, s)
		rights := []any{"ACL", "SETUSER", "u", "on", ">p", "~*", "+@all"}
		if native != "" && !granted {
			rights = append(rights, "-"+native)
		}
		s.Cmd(t, rights...)
		for _, name := range drivers.Names() {
			s.Cmd(t, "CONFIG", "RESETSTAT")
			config := drivers.Config{Network: "tcp", Addr: s.Addr(), Username: "u", Password: "p"}
			d, err := drivers.Open(t.Context(), name, config)
			if err != nil {
				t.Fatal(err)
			}
			p := New(d, timeout)
			for range 2 {
				for _, value := range []string{"", text, text + "+", "x", absent} {
					want := drivers.Reply("by itself")
					if value == text {
						want = int64(1)
					}
					s.Cmd(t, "DEL", "k")
					if value != absent {
						s.Cmd(t, "SET", "k", value)
					}
					if got := releaseOf(t, p); got != want {
						t.Errorf("%s: a key %q is released with %v, want %v", name, value, got, want)
					}
					if left := s.Cmd(t, "EXISTS", "k"); (left == int64(1)) != (value != absent && value != text) {
						t.Errorf("%s: of %q, %v keys are left", name, value, left)
					}
				}
				s.Cmd(t, "DEL", "k")
				s.Cmd(t, "RPUSH", "k", "x")
				if got := releaseOf(t, p); got != "by itself" {
					t.Errorf("%s: a list is released with %v", name, got)
				}
			}
			stats, _ := s.Cmd(t, "INFO", "commandstats").(string)
			used := regexp.MustCompile(`cmdstat_(delex|delifeq):calls=([1-9]\d*)`).FindStringSubmatch(stats)
			if (used != nil) != (native != "" && granted) {
				t.Errorf("%s: the server knows %q, the user may use it: %t, used: %q", name, native, granted, used)
			}
			p.Close()
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// releaseOf returns the reply to a release of k that is alone. Its own words echo.
func releaseOf(t *testing.T, p *Pipeline) drivers.Reply {
	t.Helper()
	reply, err := p.Do(context.Background(), script.Command{
		IsRelease: true,
		Usual: &script.Usual{
			Lock: "k", Text: "0000000000000005|o|1|web-7",
			Alone: func() script.Command { return script.Command{Words: drivers.Command{"ECHO", "by itself"}} },
		},
	}, timeout, nil)
	if err != nil {
		t.Error(err)
	}
	return reply
}
