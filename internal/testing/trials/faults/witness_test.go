package faults

import (
	"bufio"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker/internal/redis/script"
	"github.com/golocker/locker/internal/testing/trials/history"
	"github.com/golocker/locker/internal/testing/wire"
)

// witnessUser is who witnesses log in as, so that the connections of others can be closed without theirs.
const witnessUser = "witness"

// doubt is by how much a key may live longer or shorter than the lines of MONITOR say: they are stamped a moment before
// and after the script looks at the clock.
const doubt = 100 * time.Millisecond

// witness follows what the scripts do to the locks of one server, by MONITOR, and has it judged (NODE). MONITOR shows
// what was executed and not what was refused, in order, but no replies, and nothing that the server does by itself: of
// a lock that something unseen may have happened to, nothing is known until a script sets it.
type witness struct {
	node   int
	socket string
	began  time.Time
	log    history.NodeLog
	grants int // to locks known to be free or the caller's own

	life  int  // how often counters were lost, or may have been
	empty bool // locks never seen do not exist; else nothing is known of them
	locks map[string]*sight
	slots map[string]*slot // by the key of the counter
	call  *call
}

// sight is what is known of a lock.
type sight struct {
	history.NodeState
	held  bool   // Owner and Expires are known
	value string // empty: the lock is free, or only its owner is known
}

// is notes the value of the lock.
func (s *sight) is(value string, expires time.Duration) {
	*s = sight{history.NodeState{Owner: value, Expires: expires}, true, value}
	if v, ours := wire.ParseValue(value); ours {
		s.Owner, s.Fence, s.Marked = v.Owner, v.Counter, v.Marked
	}
}

// slot is what is known of the counter of a slot.
type slot struct {
	value int64
	known bool
	life  int
}

func (s *slot) set(text string) {
	s.value, _ = strconv.ParseInt(text, 10, 64)
	s.known = true
}

// observe starts a witness for each server. The servers must be new.
func (b *testbed) observe() {
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

// follow watches until ctx ends. After a break, as when the server was killed, a new life begins with nothing known.
func (w *witness) follow(ctx context.Context, ready func()) {
	ready = sync.OnceFunc(ready)
	defer ready()
	for first := true; ctx.Err() == nil; {
		conn, in, err := w.dial(ctx)
		if err != nil {
			if first && time.Since(w.began) > hangLimit {
				return // QUOTA says so
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
		w.call = nil // how it ended is not known
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

// read takes one line: `1795317797.901848 [0 lua] "SET" "lock:a" "owner" "PX" "100"`.
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
	case "DELEX", "DELIFEQ":
		w.deletes(at, args)
	case "FLUSHALL", "FLUSHDB":
		w.forget(true)
	case "SELECT": // a master's stream begins, and may have come with other data
		w.forget(false)
	default: // an operator, a master, a slot that moves, or a script that begin did not recognise
		for _, key := range args[1:] {
			w.touch(key, name == "DEL")
		}
	}
}

func (w *witness) forget(empty bool) {
	w.life++
	w.empty, w.locks, w.slots, w.call = empty, map[string]*sight{}, map[string]*slot{}, nil
}

func (w *witness) sight(lock string) *sight {
	s := w.locks[lock]
	if s == nil {
		s = &sight{held: w.empty}
		w.locks[lock] = s
	}
	return s
}

func (w *witness) slot(counter string) *slot {
	s := w.slots[counter]
	if s == nil {
		s = &slot{known: w.empty, life: w.life}
		w.slots[counter] = s
	}
	return s
}

const prefix = "lock:"

// counterOf returns the key of the counter of a lock's slot.
func counterOf(lock string) string {
	return script.KeysOf(prefix, strings.TrimPrefix(lock, prefix)).Fence()
}

func isCounter(key string) bool { return strings.HasSuffix(key, "}}"+prefix+"fence") }

// touch notes that something other than a script of locks has used a key.
func (w *witness) touch(key string, deleted bool) {
	if isCounter(key) {
		w.life++
		w.slots[key] = &slot{life: w.life} // until it is set, nothing is asked of locks that are left
	} else if strings.HasPrefix(key, prefix) {
		w.locks[key] = &sight{held: deleted}
	}
}

// testimony judges what the witnesses saw.
func (r *result) testimony(b *testbed) {
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
