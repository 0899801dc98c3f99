package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/virtual"
)

func TestUsualCasesAreJoined(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		number := map[string]int64{"a": 11, "b": 0, "c": 1, "d": 0}
		answer := serves(func(lock string) int64 { return number[lock] }, all("by itself"))
		calls, batches := together(t, d, p, answer, leaving("c"), taking("a"), get, leaving("d"), taking("b"))
		if got := answersOf(calls); !slices.Equal(got, []string{"1", "11", "by itself", "by itself", "by itself"}) {
			t.Errorf("answers %q", got)
		}
		if len(batches) != 2 || len(batches[0]) != 2 || len(batches[1]) != 2 {
			t.Fatalf("sent %q, want two commands twice", batches)
		}
		taken, left, _ := locksOf(batches[0][1])
		if !slices.Equal(taken, []string{"a", "b"}) || !slices.Equal(left, []string{"c", "d"}) {
			t.Errorf("acquisitions of %q and releases of %q are joined", taken, left)
		}
		for i, lock := range []string{"b", "d"} { // with their own words, also those of the script that is to be known
			if cmd := batches[1][i]; cmd[0] != "EVALSHA" || cmd[3] != lock {
				t.Errorf("%s is sent as %q", lock, cmd)
			}
		}
	})
}

func TestJoinedCommandsAreBounded(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		var cmds []script.Command
		for i := range MaxBatch {
			cmd := taking(fmt.Sprint("k", i))
			cmd.Usual.Alone = func() script.Command {
				t.Error("the words of a command that is joined are made")
				return get
			}
			cmds = append(cmds, cmd)
		}
		granted := serves(func(string) int64 { return 7 }, ok)
		calls, batches := together(t, d, p, granted, cmds...)
		for i, answer := range answersOf(calls) {
			if answer != "7" {
				t.Errorf("call %d: %s", i, answer)
			}
		}
		var sizes []int
		for _, cmd := range batches[0] {
			taken, _, _ := locksOf(cmd)
			sizes = append(sizes, len(taken))
		}
		if len(batches) != 1 || !slices.Equal(sizes, slices.Repeat([]int{script.MaxJoined}, MaxBatch/script.MaxJoined)) {
			t.Errorf("%d batches, the first of joined commands of %d", len(batches), sizes)
		}
	})
}

// One call alone has its usual case tried as well, also by a caller who waits in the driver.
func TestLoneCallIsJoinedWithNoOther(t *testing.T) {
	for _, direct := range []bool{true, false} {
		bubble(t, direct, func(t *testing.T, d *fake, p *Pipeline) {
			for _, reply := range []drivers.Reply{int64(9), []drivers.Reply{int64(9)}} {
				d.will(joins(reply, all("by itself")))
				if r, err := p.Do(context.Background(), taking("k"), timeout, nil); err != nil || r != int64(9) {
					t.Errorf("%v, %v; want 9", r, err)
				}
			}
			d.will(joins(int64(0), all("by itself")))
			before := d.trips()
			if r, err := p.Do(context.Background(), leaving("k"), timeout, nil); err != nil || r != "by itself" {
				t.Errorf("%v, %v; want what the release says", r, err)
			}
			if got := d.trips() - before; got != 2 {
				t.Errorf("%d exchanges, want 2", got)
			}
		})
	}
}

// A server that knows neither script gets both in full, and what it refused for that was not executed.
func TestJoinedScriptIsUnknown(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		known := serves(func(lock string) int64 { return int64(len(lock) - 1) }, ok)
		answer := func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
			replies, err := known(ctx, cmds)
			for i, cmd := range cmds {
				if cmd[0] == "EVALSHA" {
					replies[i] = unknown
				}
			}
			return replies, err
		}
		calls, batches := together(t, d, p, answer, taking("k"), taking("kkk"), leaving("l"))
		if got := answersOf(calls); !slices.Equal(got, []string{"1", "2", "1"}) {
			t.Errorf("answers %q", got)
		}
		var names []string
		for _, b := range batches {
			names = append(names, fmt.Sprint(len(b), " ", b[0][0]))
		}
		if !slices.Equal(names, []string{"1 EVALSHA", "1 EVAL", "2 EVALSHA", "2 EVAL"}) {
			t.Errorf("sent %q", names)
		}
		if script := batches[3][0][1]; script != "source of take" {
			t.Errorf("sent in full: %q", script)
		}
	})
}

// Nobody knows what a joined command has done whose reply is lost or not that of its script. If it was not sent, none
// of its calls was.
func TestOutcomeOfAJoinedCommandIsThatOfItsCalls(t *testing.T) {
	broken := errors.New("the connection broke")
	for name, c := range map[string]struct {
		answer answers
		want   string
	}{
		"lost":           {fails(broken), "lost"},
		"not sent":       {fails(refused), "not sent"},
		"too few":        {joins([]drivers.Reply{int64(1)}, ok), "lost"},
		"too many":       {joins([]drivers.Reply{int64(1), int64(1), int64(1)}, ok), "lost"},
		"no numbers":     {joins([]drivers.Reply{"1", "1"}, ok), "lost"},
		"one number":     {joins(int64(1), ok), "lost"},
		"negative":       {joins([]drivers.Reply{int64(1), int64(-1)}, ok), "lost"},
		"nothing":        {joins(nil, ok), "lost"},
		"LOADING":        {joins(drivers.ServerError("LOADING"), ok), "LOADING"},
		"READONLY":       {joins(drivers.ServerError("READONLY"), ok), "READONLY"},
		"MOVED":          {joins(drivers.ServerError("MOVED 1 x"), ok), "MOVED 1 x"},
		"NOAUTH":         {joins(drivers.ServerError("NOAUTH"), ok), "NOAUTH"},
		"ERR of a proxy": {joins(drivers.ServerError("ERR timeout"), ok), "ERR timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
				calls, batches := together(t, d, p, c.answer, taking("k"), leaving("l"))
				if got := answersOf(calls); !slices.Equal(got, []string{c.want, c.want}) || len(batches) != 1 {
					t.Errorf("answers %q after %d exchanges, want %q after one", got, len(batches), c.want)
				}
			})
		})
	}
}

// A call that was not executed as the usual case is sent by itself. Then the outcome of that is its own.
func TestOutcomeOfTheSecondExchange(t *testing.T) {
	for name, c := range map[string]struct {
		second answers
		want   string
	}{
		"lost":     {fails(errors.New("the connection broke")), "lost"},
		"not sent": {fails(refused), "not sent"},
		"refused":  {all(drivers.ServerError("READONLY")), "READONLY"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
				first := serves(func(lock string) int64 { return int64(len(lock) - 1) }, ok)
				answer := func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
					d.will(c.second)
					return first(ctx, cmds)
				}
				calls, _ := together(t, d, p, answer, taking("k"), taking("kk"), leaving("l"))
				if got := answersOf(calls); !slices.Equal(got, []string{c.want, "1", c.want}) {
					t.Errorf("answers %q, want %q of what was sent by itself", got, c.want)
				}
			})
		})
	}
}

// The server may have refused a joined command because of one key, or because of its length.
func TestCallsOfARefusedJoinedCommandAreSentByThemselves(t *testing.T) {
	for _, refusal := range []drivers.ServerError{
		"NOPERM no permissions to access one of the keys", "TRYAGAIN Multiple keys request during rehashing of slot",
		"ERR Protocol error: unauthenticated multibulk length",
	} {
		bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
			calls, batches := together(t, d, p, joins(refusal, all(int64(3))), taking("k"), leaving("l"))
			if got := answersOf(calls); !slices.Equal(got, []string{"3", "3"}) || len(batches) != 2 || len(batches[1]) != 2 {
				t.Errorf("%v: answers %q, sent %q", refusal, got, batches)
			}
		})
	}
}

// secondExchange has a call wait in its second exchange until wake is closed. The first one took a second.
func secondExchange(d *fake, wake <-chan struct{}, second answers) {
	d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		d.will(until(wake, second))
		return slowly(time.Second, joins(int64(0), ok))(ctx, cmds)
	})
}

// A call in its second exchange is under way like any other: it cannot be taken back, and its caller can leave it.
func TestCallIsLeftInItsSecondExchange(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		wake := make(chan struct{})
		secondExchange(d, wake, all("by itself"))
		c := &Call{Command: taking("k")}
		p.Submit(c, func() { t.Error("told of after it was left") })
		time.Sleep(2 * time.Second)
		if d.trips() != 2 || !p.UnderWay(c) || p.Withdraw(c) {
			t.Errorf("after %d exchanges it is not under way", d.trips())
		}
		told := make(chan drivers.Reply, 1)
		if p.Follow(c, func() { told <- c.Reply }) {
			t.Error("it is done")
		}
		close(wake)
		if r := <-told; r != "by itself" {
			t.Errorf("told of %v", r)
		}
	})
}

// The time of a batch is one time for all of its exchanges.
func TestSecondExchangeHasTheTimeThatIsLeft(t *testing.T) {
	for _, direct := range []bool{false, true} {
		bubble(t, direct, func(t *testing.T, d *fake, p *Pipeline) {
			var left time.Duration
			d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
				end, _ := ctx.Deadline()
				left = time.Until(end)
				return slowly(2*time.Second, joins(int64(0), ok))(ctx, cmds)
			})
			if _, err := p.Do(context.Background(), taking("k"), timeout, nil); err != nil {
				t.Error(err)
			}
			if want := timeout - 2*time.Second; left != want {
				t.Errorf("the second exchange has %v, want %v", left, want)
			}
		})
	}
}

// What was not executed before Close is not sent after it.
func TestCloseBetweenTheExchanges(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		d := &fake{}
		p := New(d, timeout)
		d.will(slowly(time.Second, joins(int64(0), ok)))
		ready := make(chan struct{})
		c := &Call{Command: taking("k")}
		p.Submit(c, func() { close(ready) })
		synctest.Wait()
		p.Close()
		<-ready
		if !errors.Is(c.Err, ErrClosed) || !errors.Is(c.Err, drivers.ErrNotSent) || d.trips() != 1 {
			t.Errorf("%v after %d exchanges", c.Err, d.trips())
		}
	})
}

// joinedDigest is the one by which joined commands call their script.
var joinedDigest = script.Join([]*script.Usual{taking("k").Usual}).Words[1]

// taking is a command whose usual case acquires a lock.
func taking(lock string) script.Command {
	return script.Command{Usual: &script.Usual{
		Lock: lock, Wait: lock + " wait", Fence: lock + " fence", Text: "|o|1|", TTL: time.Second, Quantum: 1,
		Alone: func() script.Command {
			return script.Command{Words: drivers.Command{"EVALSHA", "take", "1", lock}, Source: "source of take"}
		},
	}}
}

// leaving is a command whose usual case releases a lock.
func leaving(lock string) script.Command {
	return script.Command{IsRelease: true, Usual: &script.Usual{
		Lock: lock, Text: "0000000000000005|o|1|",
		Alone: func() script.Command {
			return script.Command{
				Words: drivers.Command{"EVALSHA", "leave", "1", lock}, Source: "source of leave", IsRelease: true,
			}
		},
	}}
}

// locksOf returns the locks of a joined command: those to acquire, and those to release. It returns false for another
// command.
func locksOf(cmd drivers.Command) (taken, left []string, joined bool) {
	if len(cmd) < 2 || cmd[1] != joinedDigest && !strings.HasPrefix(cmd[1], "-- The usual case") {
		return nil, nil, false
	}
	keys, _ := strconv.Atoi(cmd[2])
	a, _ := strconv.Atoi(cmd[3+keys])
	return cmd[3 : 3+a], cmd[3+3*a : 3+keys], true
}

// serves answers joined commands with what number says of each lock, and other commands with next.
func serves(number func(lock string) int64, next answers) answers {
	return func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		replies, err := next(ctx, cmds)
		for i, cmd := range cmds {
			if taken, left, joined := locksOf(cmd); joined && err == nil {
				var numbers []drivers.Reply
				for _, lock := range append(slices.Clone(taken), left...) {
					numbers = append(numbers, number(lock))
				}
				replies[i] = numbers
			}
		}
		return replies, err
	}
}

// joins answers joined commands with reply, whatever they contain, and other commands with next. It knows no native
// releases.
func joins(reply drivers.Reply, next answers) answers {
	return func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
		replies, err := next(ctx, cmds)
		for i, cmd := range cmds {
			_, _, joined := locksOf(cmd)
			switch {
			case err != nil:
			case joined:
				replies[i] = reply
			case cmd[0] == "DELEX", cmd[0] == "DELIFEQ":
				replies[i] = drivers.ServerError("ERR unknown command '" + cmd[0] + "', with args beginning with: 'k'")
			}
		}
		return replies, err
	}
}

// together has commands gathered and sent to a server that answers as it is told. It returns the calls, when all are
// resolved, and what the driver was sent for them, by batch.
func together(
	t *testing.T, d *fake, p *Pipeline, answer answers, cmds ...script.Command,
) ([]*Call, [][]drivers.Command) {
	t.Helper()
	synctest.Wait() // all senders are idle
	wake := make(chan struct{})
	d.will(until(wake, ok))
	for range maxSenders {
		p.Submit(&Call{Command: get}, func() {})
	}
	synctest.Wait()
	d.will(answer)
	sent := d.trips()
	ready := make(chan struct{}, len(cmds))
	var calls []*Call
	for _, cmd := range cmds {
		c := &Call{Command: cmd}
		calls = append(calls, c)
		p.Submit(c, func() { ready <- struct{}{} })
	}
	close(wake)
	for range calls {
		<-ready
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return calls, d.batches[sent:]
}

// answersOf returns the replies and errors of calls as texts.
func answersOf(calls []*Call) (texts []string) {
	for _, c := range calls {
		switch {
		case c.Err == nil:
			texts = append(texts, fmt.Sprint(c.Reply))
		case errors.Is(c.Err, drivers.ErrNotSent):
			texts = append(texts, "not sent")
		default:
			texts = append(texts, "lost")
		}
	}
	return texts
}

// clustered is a driver of a Redis Cluster.
type clustered struct{ *fake }

func (clustered) Cluster() {}

// slotsOf checks that the joined commands of a batch keep slots apart, and returns how many calls each has.
func slotsOf(t *testing.T, batch []drivers.Command) (sizes []int) {
	t.Helper()
	for _, cmd := range batch {
		taken, left, joined := locksOf(cmd)
		locks := append(slices.Clone(taken), left...)
		for _, lock := range locks {
			if script.Slot(lock) != script.Slot(locks[0]) {
				t.Errorf("%q are joined", locks)
			}
		}
		if joined {
			sizes = append(sizes, len(locks))
		}
	}
	return sizes
}

var ofTwoSlots = []script.Command{
	taking("{a}1"), taking("{b}1"), leaving("{a}2"), taking("{a}3"), leaving("{b}2"), get,
}

func TestSlotsOfAClusterAreKeptApart(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		d := &fake{}
		p := New(clustered{d}, timeout)
		_, batches := together(t, d, p, serves(func(string) int64 { return 1 }, ok), ofTwoSlots...)
		if got := slotsOf(t, batches[0]); len(batches) != 1 || !slices.Equal(got, []int{3, 2}) {
			t.Errorf("%d batches, the first joins %d", len(batches), got)
		}
		p.Close()
	})
}

// A driver may reach a server of a cluster without knowing. The first refusal shows that it does.
func TestServerOfAClusterIsNoticed(t *testing.T) {
	bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
		crossed := joins(drivers.ServerError("CROSSSLOT Keys in request don't hash to the same slot"), all(int64(3)))
		calls, batches := together(t, d, p, crossed, ofTwoSlots...)
		if got := answersOf(calls); len(batches) != 2 || slices.ContainsFunc(got, func(a string) bool { return a != "3" }) {
			t.Errorf("%d exchanges, answers %q", len(batches), got)
		}
		_, batches = together(t, d, p, serves(func(string) int64 { return 1 }, ok), ofTwoSlots...)
		if got := slotsOf(t, batches[0]); len(batches) != 1 || !slices.Equal(got, []int{3, 2}) {
			t.Errorf("later, %d batches, the first joins %d", len(batches), got)
		}
	})
}

// An acquisition that was not executed, because its case was not the usual one or because it was joined, is not sent
// again for a caller that has left meanwhile. It would take a lock that has become free since, and nobody would hold
// it. A release is sent again.
func TestAcquisitionOfACallerThatHasLeft(t *testing.T) {
	unusual := serves(func(string) int64 { return 0 }, all("by itself"))
	joined := joins(drivers.ServerError("TRYAGAIN Multiple keys request during rehashing of slot"), all("by itself"))
	for _, cmd := range []script.Command{taking("a"), leaving("a"), taking("joined"), leaving("joined")} {
		answer := unusual
		if cmd.Usual.Lock == "joined" {
			answer = joined
		}
		bubble(t, false, func(t *testing.T, d *fake, p *Pipeline) {
			wake := make(chan struct{})
			d.will(func(ctx context.Context, cmds []drivers.Command) ([]drivers.Reply, error) {
				<-wake
				return answer(ctx, cmds)
			})
			c := &Call{Command: cmd}
			p.Submit(c, func() { t.Error("told of a call that others follow") })
			synctest.Wait()
			told := make(chan struct{})
			if p.Withdraw(c) || p.Follow(c, func() { close(told) }) {
				t.Fatal("it is not under way")
			}
			close(wake)
			<-told
			if cmd.IsRelease && c.Reply != "by itself" {
				t.Errorf("the release came to %v, %v", c.Reply, c.Err)
			}
			if !cmd.IsRelease && (!errors.Is(c.Err, drivers.ErrNotSent) || d.trips() != 1) {
				t.Errorf("the acquisition came to %v, %v in %d exchanges", c.Reply, c.Err, d.trips())
			}
		})
	}
}
