package faults

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/trials/history"
)

// witnessUser is the user of witnesses, so that the connections of others can be closed and theirs stay open.
const witnessUser = "witness"

// doubt is how much longer or shorter a key may live than the lines of MONITOR say. Their times are taken a moment
// before or after the script reads the clock.
const doubt = 100 * time.Millisecond

// witness follows by MONITOR what the scripts do to the locks of one server, and judges it (NODE). MONITOR shows the
// executed commands in their order. It shows no refused commands, no replies, and nothing that the server does by
// itself. If something may have happened to a lock without a command, nothing is known of the lock until a script sets
// it.
type witness struct {
	node   int
	socket string
	began  time.Time
	log    history.NodeLog
	grants int // number of grants of locks that were known to be free or the caller's own

	life  int  // number of times that counters were lost, or may have been lost
	empty bool // locks that were never seen do not exist; otherwise nothing is known of them
	locks map[string]*sight
	call  *call
}

// sight is what the witness knows of a lock.
type sight struct {
	history.NodeState
	held, counted bool // Owner and Expires, and Fence, are known
	life          int  // life of the counter
}

// observe starts a witness for each server. The servers must be new.
func (b *bed) observe() {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg, ready sync.WaitGroup
	for i, s := range b.servers {
		w := &witness{node: i, socket: s.Socket(), began: time.Now()}
		b.witnesses = append(b.witnesses, w)
		ready.Add(1)
		wg.Go(func() { w.follow(ctx, ready.Done) })
	}
	b.dismiss = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	b.Cleanup(b.dismiss)
	ready.Wait()
}

// follow watches until ctx ends. After an interruption, as when the server was killed, a new life begins, of which
// nothing is known.
func (w *witness) follow(ctx context.Context, ready func()) {
	ready = sync.OnceFunc(ready)
	defer ready()
	for first := true; ctx.Err() == nil; {
		conn, in, err := w.dial(ctx)
		if err != nil {
			if first && time.Since(w.began) > patience {
				return // the rule QUOTA reports that the witness has seen too little
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
			continue
		}
		w.forget(first)
		first = false
		ready()
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				break
			}
			w.read(strings.TrimPrefix(strings.TrimSpace(line), "+"))
		}
		w.call = nil // it is not known how the script ended
		_ = conn.Close()
	}
}

func (w *witness) dial(ctx context.Context) (net.Conn, *bufio.Reader, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", w.socket)
	if err != nil {
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	in := bufio.NewReaderSize(conn, 1<<16)
	for _, cmd := range []string{"ACL SETUSER " + witnessUser + " on nopass ~* +@all", "AUTH " + witnessUser + " any",
		"MONITOR"} {
		_, _ = conn.Write([]byte(cmd + "\r\n"))
		answer, err := in.ReadString('\n')
		if err == nil && answer != "+OK\r\n" {
			err = errors.New(answer)
		}
		if err != nil {
			_ = conn.Close()
			return nil, nil, err
		}
	}
	return conn, in, nil
}

// read reads one line, such as `1795317797.901848 [0 lua] "SET" "lock:a" "owner" "PX" "100"`.
func (w *witness) read(line string) {
	stamp, rest, _ := strings.Cut(line, " ")
	source, rest, _ := strings.Cut(rest, "] ")
	secs, micros, _ := strings.Cut(stamp, ".")
	s, _ := strconv.ParseInt(secs, 10, 64)
	us, _ := strconv.ParseInt(micros, 10, 64)
	at := time.Unix(s, us*1000).Sub(w.began.Round(0))
	var args []string
	for rest != "" {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			break
		}
		arg, _ := strconv.Unquote(quoted)
		args = append(args, arg)
		rest = strings.TrimPrefix(rest[len(quoted):], " ")
	}
	if len(args) == 0 {
		return
	}
	name, inside := strings.ToUpper(args[0]), strings.HasSuffix(source, " lua")
	if inside && w.call != nil {
		w.call.to = at
		w.effect(name, args[1:])
		return
	}
	w.conclude()
	switch name {
	case "EVAL", "EVALSHA":
		w.begin(at, args)
	case "FLUSHALL", "FLUSHDB":
		w.forget(true)
	case "SELECT": // the stream of a master begins, perhaps after other data
		w.forget(false)
	default: // from an operator, a master, a move of a slot, or a script that begin did not recognise
		for _, key := range args[1:] {
			w.touch(key, name == "DEL")
		}
	}
}

func (w *witness) forget(empty bool) {
	w.life++
	w.empty, w.locks, w.call = empty, map[string]*sight{}, nil
}

func (w *witness) sight(lock string) *sight {
	s := w.locks[lock]
	if s == nil {
		s = &sight{held: w.empty, counted: w.empty, life: w.life}
		w.locks[lock] = s
	}
	return s
}

// fenceOf returns the lock to which a counter belongs.
func fenceOf(key string) (lock string, ok bool) {
	lock, ok = strings.CutSuffix(key, "}:fence")
	return strings.TrimPrefix(lock, "{"), ok
}

// touch records that something other than a script of locks has used a key.
func (w *witness) touch(key string, deleted bool) {
	if lock, ok := fenceOf(key); ok {
		s := w.sight(lock)
		w.life++
		s.life, s.counted, s.Fence = w.life, deleted, 0
	} else if strings.HasPrefix(key, "lock:") {
		s := w.sight(key)
		s.held, s.Owner, s.Expires = deleted, "", 0
	}
}

// testimony judges the observations of the witnesses.
func (r *result) testimony(b *bed) {
	b.dismiss()
	grants := 0
	for _, w := range b.witnesses {
		grants += w.grants
		for _, v := range w.log.Found {
			if r.kind.unseen {
				r.outside = append(r.outside, v)
			} else {
				r.failed = append(r.failed, v)
			}
		}
	}
	b.Logf("servers were seen to grant %d times", grants)
	r.failed = append(r.failed,
		history.Quota(map[string]int{"grants seen": grants}, map[string]int{"grants seen": 10})...)
}

func TestAWitnessAllowsForWhatScriptsThatItDoesNotRecogniseDo(t *testing.T) {
	quoted := func(args ...string) string {
		for i := range args {
			args[i] = strconv.Quote(args[i])
		}
		return strings.Join(args, " ")
	}
	acquire := func(owner, counter string) []string {
		sum := sha1.Sum([]byte(source("acquire")))
		return []string{
			"[0 127.0.0.1:1] " + quoted("EVALSHA", hex.EncodeToString(sum[:]), "2", "lock:a", "{lock:a}:fence", owner,
				"60000"),
			"[0 lua] " + quoted("SET", "{lock:a}:fence", counter, "PX", "86400000"),
			"[0 lua] " + quoted("SET", "lock:a", owner, "PX", "60000"),
		}
	}
	release := "[0 lua] " + quoted("DEL", "lock:a")
	for name, line := range map[string]string{
		"unknown": quoted("EVAL", `return redis.call("DEL", KEYS[1])`, "1", "lock:a"),
		// As Valkey 8.1.1 shows it, which does not escape quotes.
		"unreadable": `"EVAL" "-- a "b"\n` + strings.ReplaceAll(source("release"), "\n", `\n`) + `" "1" "lock:a" "one"`,
	} {
		t.Run(name, func(t *testing.T) {
			w := &witness{began: time.Now()}
			w.forget(true)
			see := func(lines ...string) int {
				for _, line := range lines {
					w.read(fmt.Sprintf("%d.000000 %s", w.began.Unix(), line))
				}
				w.conclude()
				return len(w.log.Found)
			}
			see(acquire("one", "1")...)
			see("[0 127.0.0.1:1] "+line, release)
			if see(acquire("two", "2")...) != 0 {
				t.Errorf("of a lock that the script has deleted: %v", w.log.Found)
			}
			if see(acquire("three", "3")...) != 1 {
				t.Errorf("of a lock that was taken from its owner afterwards: %v", w.log.Found)
			}
		})
	}
}
