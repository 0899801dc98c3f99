package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"time"
)

// planEnv is a variable that makes the test binary a worker.
const planEnv = "PEERS_TEST_PLAN"

// plan says what a worker needs to know.
type plan struct {
	Who      int // unique in a cell
	Peer     string
	At       string // the URL of the servers
	Register string // the URL of a [register]
	Keys     int
	Hold     time.Duration // for how long it wants a lock at most
	OneShot  bool          // a process locks once
}

// word is a line of a worker: a hold, as far as it has gone. A hold is from the return of lock to the call of unlock,
// or to the notice of a loss. Times are those of the machine's clock, which all processes share.
type word struct {
	Lease            string // unique in a cell
	Who              int
	Key              string
	Token            uint64
	Began, At, Until int64 // the call of lock, its return, the end so far
	Want             int64 // until when the holder wants the lock
	Over             bool
}

// workHere is the main function of a worker, which ends when stdin is closed.
func workHere() {
	var p plan
	if err := json.Unmarshal([]byte(os.Getenv(planEnv)), &p); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	p.contend(ctx)
}

func now() int64 { return time.Now().UnixNano() }

// pause is what a program does that does not go on at once after a failure.
func pause() { <-time.After(rand.N(20 * time.Millisecond)) }

// contend locks again and again with a library.
func (p plan) contend(ctx context.Context) {
	lib, err := p.peer().open(p.At)
	for ; err != nil; lib, err = p.peer().open(p.At) {
		if pause(); ctx.Err() != nil {
			return
		}
	}
	for ctx.Err() == nil {
		if p.turn(ctx, lib); p.OneShot {
			break
		}
	}
	if lib.close(); ctx.Err() == nil {
		self, err := os.Executable()
		if err == nil {
			err = syscall.Exec(self, os.Args, os.Environ()) // the next process, with the same id
		}
		panic(err)
	}
}

// turn locks, adds one to both numbers of the register if the lock was not lost meanwhile, and unlocks. It tells the
// end of its hold again and again, since the process can be killed.
func (p plan) turn(ctx context.Context, lib library) {
	w := word{Who: p.Who, Key: fmt.Sprint("k", rand.IntN(p.Keys)), Began: now()}
	var h hold
	for {
		call, cancel := context.WithTimeout(ctx, limit)
		var err error
		h, err = lib.lock(call, w.Key)
		if cancel(); err == nil {
			break
		}
		if pause(); ctx.Err() != nil {
			return
		}
	}
	if h.lost == nil { // nobody renews it
		p.Hold = min(p.Hold, ttl/2)
	}
	w.At, w.Token = now(), h.token
	w.Want = w.At + int64(rand.N(p.Hold))
	w.Lease = fmt.Sprintf("%d.%d", p.Who, w.At)
	tell := func(until int64) {
		w.Until = until
		if err := json.NewEncoder(os.Stdout).Encode(w); err != nil {
			os.Exit(1) // the trial is over
		}
	}
	tell(w.At)
	number := access(http.MethodGet, p.Register, w, "0 0")
	for ; !h.isLost() && now() < w.Want; tell(now()) {
		select {
		case <-h.lost:
		case <-time.After(looks):
		}
	}
	if !h.isLost() {
		access(http.MethodPut, p.Register, w, number)
		w.Until = now()
	}
	w.Over = true
	tell(w.Until)
	h.unlock()
	pause()
}

func (h hold) isLost() bool {
	select {
	case <-h.lost:
		return true
	default:
		return false
	}
}

// access reads or writes the numbers of a register. They are text.
func access(method, at string, w word, numbers string) string {
	query := url.Values{"key": {w.Key}, "token": {fmt.Sprint(w.Token)}, "numbers": {numbers}}
	r, err := http.NewRequest(method, at+"?"+query.Encode(), nil)
	if err != nil {
		panic(err)
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		return numbers // the trial is over
	}
	defer reply.Body.Close()
	text, _ := io.ReadAll(reply.Body)
	return string(text)
}
