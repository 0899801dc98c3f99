package single_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/short"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/single"
)

// forbidden says what becomes of locks if a server, or its user, has no right to some commands. docs/deploying.md has a
// row for each.
var forbidden = []struct {
	commands string
	options  []single.Option
	says     []string      // parts of the error of the first lock; none: locks work
	late     time.Duration // how late a waiter may learn of a release
}{
	{commands: "CLIENT"},
	{commands: "HELLO"},
	{commands: "COMMAND"},
	{commands: "CONFIG"},
	{commands: "INFO"},
	{commands: "INFO", options: []single.Option{single.Guard(ttl)},
		says: []string{"the restart guard needs INFO inside of scripts", "ACL: +info", "managed services"}},
	{commands: "SCRIPT"},
	{commands: "PUBLISH", late: untoldPoll},
	{commands: "SUBSCRIBE", late: untoldPoll},
	{commands: "WAIT"},
	{commands: "WAIT", options: []single.Option{single.WaitReplicas(1, 50*time.Millisecond)},
		says: []string{"confirmed by 0 of 1 replicas", "the server refuses WAIT"}},
	{commands: "EVAL", says: []string{"locks need EVAL and EVALSHA"}},
	{commands: "EVALSHA", says: []string{"locks need EVAL and EVALSHA"}},
	{commands: "TIME", says: []string{"locker doctor names each command that is missing"}},
}

func TestForbiddenCommands(t *testing.T) {
	page, err := os.ReadFile("../docs/deploying.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range forbidden {
		if !strings.Contains(string(page), "| `"+c.commands+"`") {
			t.Errorf("docs/deploying.md has no row for %s", c.commands)
		}
		for _, way := range []string{"rights", "rename-command"} {
			name := c.commands + " by " + way
			if len(c.options) > 0 {
				name += ", needed"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s, user := without(t, c.commands, way == "rights")
				for _, driver := range short.Part(t, 1, drivers.Names()) {
					eventually(t, 30*time.Second, "the driver before has undone its attempt",
						func() bool { return len(s.Keys(t, single.DefaultPrefix+"k")) == 0 })
					client := func() *locker.Client {
						d, err := drivers.Open(t.Context(), driver, user)
						if err != nil {
							t.Fatal(err)
						}
						return closing(t, single.New(d, c.options...))
					}
					said := lockAndHandOver(t, s, client(), client(), c.late)
					if (said == nil) != (len(c.says) == 0) || said != nil && !errors.Is(said, locker.ErrUnavailable) {
						t.Fatalf("%s: %v", driver, said)
					}
					for _, part := range c.says {
						if !strings.Contains(said.Error(), part) {
							t.Errorf("%s: %v does not say %q", driver, said, part)
						}
					}
					if said != nil && strings.Contains(said.Error(), "args") {
						t.Errorf("%s: the error has the arguments of the command: %v", driver, said)
					}
				}
			})
		}
	}
}

// without starts a server that refuses a command: to the user, or by rename-command to all.
func without(t *testing.T, command string, byRights bool) (*redistest.Server, drivers.Config) {
	t.Helper()
	if !byRights {
		s := redistest.Start(t, "--rename-command", command, "")
		return s, drivers.Config{Network: "tcp", Addr: s.Addr()}
	}
	s := redistest.Start(t)
	s.User(t, "locker", "on", ">password", "~*", "+@all", "-"+command)
	return s, drivers.Config{Network: "tcp", Addr: s.Addr(), Username: "locker", Password: "password"}
}

// lockAndHandOver lets b wait for a lock of a, checks that b has it in time, and returns the error of a's first call.
func lockAndHandOver(t *testing.T, s *redistest.Server, a, b *locker.Client, bound time.Duration) error {
	t.Helper()
	lease, err := a.TryLock(t.Context(), "k", locker.TTL(ttl))
	if err != nil {
		return err
	}
	promptly(t, bound, func() time.Duration {
		if lease == nil {
			lease = mustTry(t, a)
		}
		result := lockLater(t, b)
		if bound == 0 {
			listening(t, s, 1)
		} else {
			looking(t, s)
		}
		if err := lease.Extend(t.Context()); err != nil {
			t.Error(err)
		}
		released := time.Now()
		steady.Unlock(t, lease)
		lease = nil
		return take(t, result).Sub(released)
	})
	nothingLeft(t, s)
	return nil
}
