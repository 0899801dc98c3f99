package conformance

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/golocker/locker/drivers"
)

// binary is a value that a client would damage if it treated strings as text or lines.
const binary = "\x00\r\n$5\r\n\xff\xfe+OK\r\n'\""

func replyTypes(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	number, text, absent := newKey(t, d), newKey(t, d), newKey(t, d)
	cases := []struct {
		what string
		cmd  drivers.Command
		want drivers.Reply
	}{
		{"a status", drivers.Command{"SET", number, "9223372036854775806"}, "OK"},
		{"another status", drivers.Command{"PING"}, "PONG"},
		{"the largest integer", drivers.Command{"INCR", number}, int64(math.MaxInt64)},
		{"a digit string", drivers.Command{"GET", number}, "9223372036854775807"},
		{"a negative integer", drivers.Command{"EVAL", "return -1", "0"}, int64(-1)},
		{"nothing deleted", drivers.Command{"DEL", absent}, int64(0)},
		{"an empty string stored", drivers.Command{"SET", text, ""}, "OK"},
		{"an empty string", drivers.Command{"GET", text}, ""},
		{"bytes stored", drivers.Command{"SET", text, binary}, "OK"},
		{"bytes", drivers.Command{"GET", text}, binary},
		{"bytes in a key", drivers.Command{"EXISTS", text + binary}, int64(0)},
		{"a nil string", drivers.Command{"GET", absent}, nil},
		{"a nil array", drivers.Command{"XREAD", "COUNT", "1", "STREAMS", absent, "0"}, nil},
		{"an empty array", drivers.Command{"EVAL", "return {}", "0"}, []drivers.Reply{}},
		{"an array of strings with a nil", drivers.Command{"MGET", text, absent}, []drivers.Reply{binary, nil}},
		{
			"a nested array",
			drivers.Command{"EVAL", "return {1, 'a', {2, '', {}, ARGV[1]}, false, -3}", "0", binary},
			[]drivers.Reply{int64(1), "a", []drivers.Reply{int64(2), "", []drivers.Reply{}, binary}, nil, int64(-3)},
		},
		{
			"a status and an error in an array",
			drivers.Command{"EVAL", "return {redis.status_reply('FINE'), redis.error_reply('MINE own prose'), 'end'}",
				"0"},
			[]drivers.Reply{"FINE", drivers.ServerError("MINE own prose"), "end"},
		},
	}
	batch := make([]drivers.Command, len(cases))
	for i, c := range cases {
		batch[i] = c.cmd
		expect(t, c.what, c.want, must(t, d, c.cmd)[0])
	}
	for i, reply := range must(t, d, batch...) {
		expect(t, cases[i].what+", in a batch", cases[i].want, reply)
	}
}

func serverErrorIsReply(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	key := newKey(t, d)
	must(t, d, drivers.Command{"SET", key, "a string"})
	for _, c := range []struct {
		what string
		cmd  drivers.Command
		want string // the whole text, or with a final "*" its beginning
	}{
		{"an unknown command", drivers.Command{"CONFORMANCE"}, "ERR unknown command*"},
		{"a wrong number of arguments", drivers.Command{"GET"}, "ERR wrong number of arguments*"},
		{"a text that begins like a code", drivers.Command{"EXEC"}, "ERR EXEC without MULTI"},
		{"a wrong type", drivers.Command{"LPUSH", key, "element"}, "WRONGTYPE *"},
		{"an unknown script", drivers.Command{"EVALSHA", strings.Repeat("0", 40), "0"}, "NOSCRIPT *"},
		{"an error that a script returns", drivers.Command{"EVAL", "return redis.error_reply('MINE own  prose')", "0"},
			"MINE own  prose"},
		{"an error that a script does not handle",
			drivers.Command{"EVAL", "return redis.call('LPUSH', KEYS[1], 1)", "1", key}, "WRONGTYPE *"},
	} {
		reply := must(t, d, c.cmd)[0]
		seen, ok := reply.(drivers.ServerError)
		prefix, open := strings.CutSuffix(c.want, "*")
		begins := strings.HasPrefix(string(seen), prefix) || seen.Code()+" " == prefix // see ServerError.Error
		if !ok || string(seen) != c.want && !(open && begins) {
			t.Errorf("%s: expected ServerError %q, seen %s", c.what, c.want, show(reply))
		}
	}
}

func refusedConnectionIsReply(t testing.TB, h DriverHarness) {
	if h.Refused == nil {
		t.Skip("the harness has no Refused")
	}
	d := closeAtEnd(t, h.Refused(t))
	for _, cmds := range [][]drivers.Command{{{"PING"}}, {{"PING"}, {"ECHO", "a"}, {"PING"}}, {{"PING"}}} {
		for i, reply := range must(t, d, cmds...) {
			if _, ok := reply.(drivers.ServerError); !ok {
				t.Errorf("command %d of %d: expected a ServerError, seen %s", i+1, len(cmds), show(reply))
			}
		}
	}
}

func batchOrder(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	cmds := make([]drivers.Command, 100)
	for i := range cmds {
		cmds[i] = drivers.Command{"ECHO", fmt.Sprint("number ", i)}
	}
	for _, n := range []int{1, 2, len(cmds)} {
		for i, reply := range must(t, d, cmds[:n]...) {
			expect(t, fmt.Sprintf("command %d of %d", i, n), cmds[i][1], reply)
		}
	}
}

func batchKeepsRepliesAroundErrors(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	key := newKey(t, d)
	must(t, d, drivers.Command{"SET", key, "value"})
	good := []drivers.Command{{"ECHO", "first"}, {"GET", key}, {"EXISTS", key}}
	want := []drivers.Reply{"first", "value", int64(1)}
	for place := range len(good) + 1 {
		replies := must(t, d, slices.Insert(slices.Clone(good), place, drivers.Command{"LPUSH", key, "element"})...)
		if e, ok := replies[place].(drivers.ServerError); !ok || e.Code() != "WRONGTYPE" {
			t.Errorf("refused command at %d: expected ServerError \"WRONGTYPE ...\", seen %s", place,
				show(replies[place]))
		}
		expect(t, fmt.Sprintf("replies around the refused command at %d", place), want,
			slices.Delete(replies, place, place+1))
	}
}

func commandsStayTheCallers(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	key := newKey(t, d)
	cmds := []drivers.Command{{"set", key, "value"}, {"eval", "return KEYS[1]", "1", key}, {"get", key}}
	want := fmt.Sprintf("%q", cmds)
	must(t, d, cmds...)
	must(t, d, cmds[1])
	if seen := fmt.Sprintf("%q", cmds); seen != want {
		t.Errorf("commands after Do: expected %s, seen %s", want, seen)
	}
}

func scriptsRoundTrip(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	const script = "return {KEYS[1], KEYS[2], #ARGV, ARGV[1], ARGV[2], ARGV[3]}"
	a, b := newKey(t, d), newKey(t, d)
	digest, ok := must(t, d, drivers.Command{"SCRIPT", "LOAD", script})[0].(string)
	if !ok || len(digest) != 40 {
		t.Fatalf("SCRIPT LOAD: expected a digest, seen %s", show(digest))
	}
	want := []drivers.Reply{a, b, int64(3), "", binary, "3"}
	arguments := []string{"2", a, b, "", binary, "3"}
	byDigest := append(drivers.Command{"EVALSHA", digest}, arguments...)
	byText := append(drivers.Command{"EVAL", script}, arguments...)
	expect(t, "EVALSHA", want, must(t, d, byDigest)[0])
	expect(t, "EVAL", want, must(t, d, byText)[0])
	expect(t, "both in a batch", []drivers.Reply{want, want}, must(t, d, byDigest, byText))
	expect(t, "a script without keys", "x", must(t, d, drivers.Command{"EVAL", "return ARGV[1]", "0", "x"})[0])
}

func largeValues(t testing.TB, h DriverHarness) {
	d := openDriver(t, h, h.Addr(t))
	key := newKey(t, d)
	value := strings.Repeat("0123456789abcde\n", 1<<16)
	expect(t, "SET", "OK", must(t, d, drivers.Command{"SET", key, value})[0])
	expect(t, "GET", value, must(t, d, drivers.Command{"GET", key})[0])
	expect(t, "a batch", []drivers.Reply{value, "OK", value + "end", value}, must(t, d,
		drivers.Command{"ECHO", value}, drivers.Command{"SET", key, value + "end"},
		drivers.Command{"GET", key}, drivers.Command{"ECHO", value}))
}

func concurrent(t testing.TB, h DriverHarness) {
	const callers, rounds = 32, 20
	d := openDriver(t, h, h.Addr(t))
	var wg sync.WaitGroup
	for caller := range callers {
		key := newKey(t, d)
		wg.Go(func() {
			for round := range rounds {
				value := fmt.Sprintf("%d/%d", caller, round)
				cmds := []drivers.Command{{"SET", key, value}, {"GET", key}, {"ECHO", value}}
				want := []drivers.Reply{"OK", value, value}
				if round%2 == 1 { // alone and in batches
					cmds, want = cmds[2:], want[2:]
				}
				replies, err := d.Do(t.Context(), cmds...)
				if err != nil {
					t.Errorf("caller %d, round %d: expected no error, seen %v", caller, round, err)
					return
				}
				expect(t, fmt.Sprintf("caller %d, round %d", caller, round), want, replies)
			}
		})
	}
	wg.Wait()
}
