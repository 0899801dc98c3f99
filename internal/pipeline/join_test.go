package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/script"
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
