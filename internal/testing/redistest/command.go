package redistest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/golocker/locker/internal/testing/wire"
)

// askTimeout bounds one command to the server. A command to a paused server then fails, and the test does not hang.
const askTimeout = 10 * time.Second

// Do sends one command through the unix socket, not through the client under test. It returns the reply: int64, string,
// nil or []any of these. An error reply, also as an element of an array, is returned as an error.
//
// Each call makes a connection of its own. That costs little, and leaves no state from before a Restart.
func (s *Server) Do(args ...any) (any, error) {
	name, _ := args[0].(string)
	return s.ask(name, args[1:]...)
}

// Cmd is Do for commands that must succeed. If the command fails, so does the test.
func (s *Server) Cmd(tb testing.TB, args ...any) any {
	tb.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		tb.Fatalf("redistest: %v: %v", args, err)
	}
	return reply
}

// ChannelRights reports whether the server knows rights on channels. Servers before Redis 6.2 do not.
func (s *Server) ChannelRights(tb testing.TB) bool {
	tb.Helper()
	_, err := s.Do("ACL", "SETUSER", "redistest", "&*")
	s.Cmd(tb, "ACL", "DELUSER", "redistest")
	return err == nil
}

// Knows reports whether the server knows a command.
func (s *Server) Knows(tb testing.TB, command string) bool {
	tb.Helper()
	info, _ := s.Cmd(tb, "COMMAND", "INFO", command).([]any)
	return len(info) == 1 && info[0] != nil
}

// User creates a user with the given rules of ACL SETUSER. The user may use all channels. Without that rule, a new user
// may use none if the server knows rights on channels.
func (s *Server) User(tb testing.TB, name string, rules ...any) {
	tb.Helper()
	if s.ChannelRights(tb) {
		rules = append([]any{"&*"}, rules...)
	}
	s.Cmd(tb, append([]any{"ACL", "SETUSER", name}, rules...)...)
}

// IsMaster reports whether the server says that it is a master. It reports false if the server does not answer, because
// a server that is being promoted closes its connections.
func (s *Server) IsMaster() bool {
	reply, _ := s.Do("ROLE")
	role, ok := reply.([]any)
	return ok && len(role) > 0 && role[0] == "master"
}

// Fields returns the names of the fields of a hash.
func (s *Server) Fields(tb testing.TB, key string) (names []string) {
	tb.Helper()
	for _, name := range s.Cmd(tb, "HKEYS", key).([]any) {
		names = append(names, name.(string))
	}
	return names
}

// PTTL returns for how long a key lives yet. It is negative if the key has no TTL, or does not exist.
func (s *Server) PTTL(tb testing.TB, key string) time.Duration {
	tb.Helper()
	return time.Duration(s.Cmd(tb, "PTTL", key).(int64)) * time.Millisecond
}

// CPU returns the processor time that the server has used.
func (s *Server) CPU(tb testing.TB) (used time.Duration) {
	tb.Helper()
	for line := range strings.Lines(s.Cmd(tb, "INFO", "cpu").(string)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				tb.Fatal(err)
			}
			used += time.Duration(seconds * float64(time.Second))
		}
	}
	return used
}

// Left returns the keys that should not be there when nobody holds a lock or waits for one; see [wire.Left].
func (s *Server) Left(tb testing.TB) []string {
	tb.Helper()
	return wire.Left(s.Keys(tb, "*"), func(key string) []string { return s.Fields(tb, key) })
}

// Dump returns what the server has: a line for each string, and for each element of a hash or a sorted set, sorted by
// their keys.
func (s *Server) Dump(tb testing.TB) string {
	tb.Helper()
	var b strings.Builder
	for _, key := range s.Keys(tb, "*") {
		lasts := "for ever"
		if s.PTTL(tb, key) >= 0 {
			lasts = "expires"
		}
		kind := s.Cmd(tb, "TYPE", key)
		line := func(element string) { fmt.Fprintf(&b, "%s (%s, %s): %s\n", key, kind, lasts, element) }
		pairs := func(all any) {
			var lines []string
			for pair := range slices.Chunk(all.([]any), 2) {
				lines = append(lines, fmt.Sprintf("%s = %s", pair[0], pair[1]))
			}
			slices.Sort(lines)
			for _, l := range lines {
				line(l)
			}
		}
		switch kind {
		case "string":
			line(fmt.Sprint(s.Cmd(tb, "GET", key)))
		case "hash":
			pairs(s.Cmd(tb, "HGETALL", key))
		case "zset":
			pairs(s.Cmd(tb, "ZRANGE", key, 0, -1, "WITHSCORES"))
		default:
			line("…")
		}
	}
	return b.String()
}

// Keys returns the keys that match pattern ("*" for all), sorted. It uses SCAN, so keys that are added or removed
// meanwhile may or may not be among them.
func (s *Server) Keys(tb testing.TB, pattern string) []string {
	tb.Helper()
	keys := []string{}
	for cursor := "0"; ; {
		page, ok := s.Cmd(tb, "SCAN", cursor, "MATCH", pattern, "COUNT", 1000).([]any)
		if !ok || len(page) != 2 {
			tb.Fatalf("redistest: SCAN answered %v", page)
		}
		for _, key := range page[1].([]any) {
			keys = append(keys, key.(string))
		}
		if cursor = page[0].(string); cursor == "0" {
			slices.Sort(keys)
			return slices.Compact(keys)
		}
	}
}

func (s *Server) ask(name string, args ...any) (any, error) {
	options := []redis.DialOption{
		redis.DialConnectTimeout(askTimeout), redis.DialReadTimeout(askTimeout), redis.DialWriteTimeout(askTimeout),
	}
	if password := s.option("--requirepass"); password != "" {
		options = append(options, redis.DialPassword(password))
	}
	conn, err := redis.Dial("unix", s.Socket(), options...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	reply, err := conn.Do(name, args...)
	return text(reply), err
}

// text turns the byte slices of a redigo reply into strings, which are easier to compare and to print.
func text(reply any) any {
	switch reply := reply.(type) {
	case []byte:
		return string(reply)
	case []any:
		for i := range reply {
			reply[i] = text(reply[i])
		}
	}
	return reply
}
