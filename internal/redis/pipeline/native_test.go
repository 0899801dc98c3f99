package pipeline

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/redistest"
)

// knows answers a native release with number if it is the one that the server knows, and a probe with 0. Joined
// commands delete.
func knows(native string, number int64) answers {
	return func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		replies, err := joins(int64(1), all("by itself"))(ctx, cmds)
		for i, cmd := range cmds {
			switch {
			case cmd[0] != native:
			case strings.HasSuffix(cmd[len(cmd)-1], "++"):
				replies[i] = int64(0)
			default:
				replies[i] = number
			}
		}
		return replies, err
	}
}

// released sends a release that is alone, and checks its answer and the names of the commands that it took. Commands of
// one exchange are joined by a +.
func released(t *testing.T, d *fake, p *Pipeline, wantAnswer, wantSent string) {
	t.Helper()
	before := d.trips()
	cmd, unusual := leaving("k"), false
	p.Unusual = func(string) { unusual = true }
	reply, err := p.Do(context.Background(), cmd, timeout, nil)
	synctest.Wait() // for the answers to probes, which come after that to the call
	if unusual != (wantAnswer == "by itself") {
		t.Errorf("answer %v: that it is unusual is said: %t", reply, unusual)
	}
	var trips []string
	d.mu.Lock()
	for _, batch := range d.batches[before:] {
		var names []string
		for _, cmd := range batch {
			name := cmd[0]
			if _, _, joined := locksOf(cmd); joined {
				name = "joined"
			}
			names = append(names, name)
		}
		trips = append(trips, strings.Join(names, "+"))
	}
	d.mu.Unlock()
	answer, sent := answersOf([]*Call{{Reply: reply, Err: err}})[0], strings.Join(trips, " ")
	if answer != wantAnswer || sent != wantSent {
		t.Errorf("answer %s to %s, want %s to %s", answer, sent, wantAnswer, wantSent)
	}
}

// probing is how a release that is alone is sent while it is not known what the server knows.
const probing = "joined+DELEX+DELIFEQ"

func TestNativeReleaseIsFoundOut(t *testing.T) {
	for _, native := range []string{"DELEX", "DELIFEQ", "joined"} {
		for _, direct := range []bool{false, true} {
			bubble(t, direct, func(t *testing.T, d *fake, p *Pipeline) {
				d.will(knows(native, 1))
				released(t, d, p, "1", probing)
				released(t, d, p, "1", native)
				if native == "joined" {
					return
				}
				d.will(knows(native, 0)) // the lock is another's, or somebody waits
				released(t, d, p, "by itself", native+" EVALSHA")
			})
		}
	}
}

func TestNativeReleaseNamesKeyAndValue(t *testing.T) {
	u := &script.Usual{Lock: "k", Text: "0000000000000005|o|1|"}
	for native, want := range map[script.Native][]string{
		script.DelEx: {"DELEX", "k", "IFEQ", u.Text}, script.DelIfEq: {"DELIFEQ", "k", u.Text}, script.NoNative: nil,
	} {
		if cmd, ok := native.Release(u); !slices.Equal(cmd.Words, want) || ok != (want != nil) {
			t.Errorf("%d: %q", native, cmd.Words)
		}
		probe := native.Probe(u).Words
		if value, ours := strings.CutPrefix(probe[len(probe)-1], u.Text); !ours || value == "" || value == "+" {
			t.Errorf("%d: what somebody has can be deleted by the probe %q", native, probe)
		}
	}
	for name, u := range map[string]*script.Usual{
		"acquisition": taking("k").Usual, "release of any counter": {Lock: "k", Text: "9999999999999999|o|1|"},
	} {
		if cmd, ok := script.DelEx.Release(u); ok {
			t.Errorf("%s: %q", name, cmd.Words)
		}
	}
}

// Releases that travel together share a script.
func TestOnlyALoneReleaseIsNative(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		d.will(knows("DELEX", 1))
		released(t, d, p, "1", probing)
		_, batches := together(t, d, p, serves(func(string) int64 { return 1 }, ok), leaving("k"), leaving("l"))
		if _, left, _ := locksOf(batches[0][0]); len(batches) != 1 || len(left) != 2 {
			t.Errorf("sent %q", batches)
		}
		_, batches = together(t, d, p, ok, leaving("k"), get)
		if len(batches) != 1 || len(batches[0]) != 2 || batches[0][1][0] != "DELEX" {
			t.Errorf("sent %q", batches)
		}
	})
}

// A server may be replaced by one that knows another command or none, and rights may be taken away.
func TestNativeReleaseIsNotKnownAnyMore(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		d.will(knows("DELEX", 1))
		released(t, d, p, "1", probing)
		d.will(knows("DELIFEQ", 1))
		released(t, d, p, "1", "DELEX "+probing)
		released(t, d, p, "1", "DELIFEQ")
		d.will(func(_ context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			if cmds[0][0] == "DELIFEQ" {
				return []drivers.Reply{drivers.ServerError("NOPERM no permissions to run the 'delifeq' command")}, nil
			}
			return []drivers.Reply{int64(1)}, nil
		})
		released(t, d, p, "1", "DELIFEQ joined")
		d.will(knows("DELIFEQ", 1))
		released(t, d, p, "1", "joined")
	})
}

// A reply that is not an answer to the command says nothing about what the server knows.
func TestNativeReleaseInABadHour(t *testing.T) {
	for name, c := range map[string]struct {
		answer answers
		reply  string
		probed string // how the next release is sent, if this happened to the probes
	}{
		"not sent": {fails(refused), "not sent", probing},
		"LOADING":  {all(drivers.ServerError("LOADING")), "LOADING", probing},
		"lost":     {fails(errors.New("the connection broke")), "lost", "joined"}, // maybe because of them
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
				d.will(c.answer)
				released(t, d, p, c.reply, probing)
				d.will(knows("DELEX", 1))
				time.Sleep(maxDialBackoff)
				released(t, d, p, "1", c.probed)
			})
			bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
				d.will(knows("DELEX", 1))
				released(t, d, p, "1", probing)
				d.will(c.answer)
				released(t, d, p, c.reply, "DELEX")
				d.will(knows("DELEX", 1))
				released(t, d, p, "1", "DELEX")
			})
		})
	}
}

// A key that is not a string does not end the use of the native command.
func TestNativeReleaseOfAnotherType(t *testing.T) {
	for _, refusal := range []drivers.ServerError{
		"WRONGTYPE Operation against a key holding the wrong kind of value",
		"ERR Key should be of string type if conditions are specified",
	} {
		bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
			d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
				replies, err := joins(int64(0), all("by itself"))(ctx, cmds)
				for i, cmd := range cmds {
					if cmd[0] == "DELEX" {
						replies[i] = refusal
					}
				}
				return replies, err
			})
			released(t, d, p, "by itself", probing+" EVALSHA")
			released(t, d, p, "by itself", "DELEX EVALSHA")
			d.will(knows("DELEX", 1))
			released(t, d, p, "1", "DELEX")
		})
	}
}

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
