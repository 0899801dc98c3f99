package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/rwlock"
	"github.com/golocker/locker/single"
)

// crewEnv is a variable that makes this program the process of a crew, which its value describes as JSON.
const crewEnv = "LOCKER_BENCH_CREW"

// crew is the readers and writers of one process. They want one key without pause.
type crew struct {
	Addr             string // of the Redis
	Readers, Writers int
	Hold             time.Duration
	Long             time.Duration // for which one of the readers holds once; 0: none does
	For              time.Duration
}

// deeds is what a crew did, by class: the readers, then the writers.
type deeds [2]class

const (
	reader = iota
	writer
)

// class is what the readers or the writers of a process did.
type class struct {
	All, Within int           // acquisitions, and those before the end of the visit
	Longest     time.Duration // of their waits
	Held        []span        // when at least one of them held the lock, in order

	mu sync.Mutex // guards all
	in int        // how many hold the lock
}

// span is a time on this machine, in Unix nanoseconds.
type span struct{ From, To int64 }

// enter counts an acquisition that has just returned.
func (c *class) enter(asked, end time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.All++
	if now.Before(end) {
		c.Within++
	}
	c.Longest = max(c.Longest, now.Sub(asked))
	if c.in++; c.in == 1 {
		c.Held = append(c.Held, span{From: now.UnixNano()})
	}
}

// leave is called before a release.
func (c *class) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.in--; c.in == 0 {
		c.Held[len(c.Held)-1].To = time.Now().UnixNano()
	}
}

// acquire acquires a lock.
type acquire func(ctx context.Context, key string) (held, error)

// work has the readers and writers acquire, hold and release until their time is over.
func (c crew) work(ctx context.Context, read, write acquire) (*deeds, error) {
	ctx, cancel := context.WithTimeout(ctx, c.For+c.Long+30*time.Second)
	defer cancel()
	start := time.Now()
	end := start.Add(c.For)
	loop := func(mine *class, get acquire, long time.Duration) error {
		for time.Now().Before(end) && ctx.Err() == nil {
			asked := time.Now()
			h, err := get(ctx, "readers and writers")
			if err != nil {
				return err
			}
			mine.enter(asked, end)
			hold := c.Hold
			if long > 0 && time.Since(start) > c.For/3 {
				hold, long = long, 0
			}
			time.Sleep(hold)
			mine.leave()
			if err := h.Unlock(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	done, ends := new(deeds), make(chan error)
	for i := range c.Readers {
		var long time.Duration
		if i == 0 {
			long = c.Long
		}
		go func() { ends <- loop(&done[reader], read, long) }()
	}
	for range c.Writers {
		go func() { ends <- loop(&done[writer], write, 0) }()
	}
	var failed error
	for range c.Readers + c.Writers {
		if err := <-ends; err != nil {
			failed = err
		}
	}
	return done, failed
}

// crewHere is the main function of the process of a crew.
func crewHere(plan string) {
	var c crew
	err := json.Unmarshal([]byte(plan), &c)
	if err == nil {
		err = c.serve(bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "crew:", err)
		os.Exit(1)
	}
}

// serve says when the crew is ready, begins when a byte comes, and says what the crew did. The process ends when in is
// closed.
func (c crew) serve(in io.ByteReader, out *json.Encoder) error {
	d, end, err := newDriver("rueidis", c.Addr, limits{c.Readers + c.Writers, longTimeout})
	if err != nil {
		return err
	}
	defer end()
	l := single.New(d)
	defer func() { _ = l.Close() }()
	rw := rwlock.New(l)
	read, write := lockOf(rw.Shared()), lockOf(rw.Exclusive())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, get := range []acquire{read, write} { // connections and scripts are ready then
		h, err := get(ctx, fmt.Sprint("warm-up ", os.Getpid()))
		if err != nil {
			return err
		}
		_ = h.Unlock(ctx) // on a busy machine it may not be answered in time
	}
	if err := out.Encode("ready"); err != nil {
		return err
	}
	if _, err := in.ReadByte(); err != nil {
		return err
	}
	go func() {
		_, _ = in.ReadByte()
		os.Exit(1)
	}()
	done, err := c.work(context.Background(), read, write)
	if err != nil {
		return err
	}
	return out.Encode(done)
}

func lockOf(l locker.Locker) acquire {
	return func(ctx context.Context, key string) (held, error) { return l.Lock(ctx, key) }
}

// process is that of a crew.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *json.Decoder
}

func (c crew) start(ctx context.Context) (*process, error) {
	plan, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self)}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), crewEnv+"="+string(plan)), os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil { // it is closed when this process ends, however that is
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = json.NewDecoder(stdout)
	return p, p.cmd.Start()
}

// atWork has crews work at the same time, each in a process of its own, and returns what they did. ready is called when
// all of them are ready.
func atWork(ctx context.Context, crews []crew, ready func()) (all []*deeds, err error) {
	var processes []*process
	defer func() {
		for _, p := range processes {
			_ = p.stdin.Close()
			_ = p.cmd.Wait() // what it has to say was read, or is on stderr
		}
	}()
	for _, c := range crews {
		p, err := c.start(ctx)
		if err != nil {
			return nil, err
		}
		processes = append(processes, p)
	}
	for _, p := range processes {
		if err := p.out.Decode(new(string)); err != nil {
			return nil, fmt.Errorf("the process of a crew does not begin: %w", err)
		}
	}
	ready()
	for _, p := range processes {
		if _, err := p.stdin.Write([]byte{'\n'}); err != nil {
			return nil, err
		}
	}
	for _, p := range processes {
		done := new(deeds)
		if err := p.out.Decode(done); err != nil {
			return nil, fmt.Errorf("the process of a crew has failed: %w", err)
		}
		all = append(all, done)
	}
	return all, nil
}
