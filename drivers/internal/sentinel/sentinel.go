// Package sentinel follows the master of a deployment that Redis Sentinel manages. It asks the sentinels for the
// address, and hears of new masters. What it needs of the contract of drivers is in its [Config].
package sentinel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// straggle is how long the other sentinels are waited for when the first has answered.
	straggle = 100 * time.Millisecond
	// silence is how long a sentinel may send nothing before it is asked whether it is alive, and again until it counts
	// as dead.
	silence = 5 * time.Second
	// relisten is the longest pause before the next sentinel is listened to.
	relisten = time.Second
	// doubting is how long sentinels are asked again, at most, if they do not name the master that is in the news.
	doubting = 10 * time.Second
)

// Config has the sentinels of one deployment, and how to reach them.
type Config struct {
	Master  string        // the name of the deployment
	Addrs   []string      // of the sentinels; at least one
	Timeout time.Duration // of a question to all sentinels

	Dial  func(ctx context.Context, addr string) (net.Conn, error)
	Login func(ctx context.Context) (username, password string, err error)

	// Refusal makes an error of the text with which a sentinel refuses a command.
	Refusal func(text string) Refusal

	// Moved is called when the sentinels have named a master, which may be another one than before.
	Moved func()
}

// Refusal is the refusal of a command. Its code is the first word of its text, such as ERR.
type Refusal interface {
	error
	Code() string
}

// Follower knows the master that the sentinels named last. Each [Follower.LookUp] asks all sentinels, at the same time,
// and believes the one with the newest configuration. Beginning with the first LookUp, the Follower also listens to one
// of the sentinels. Its methods may be called concurrently.
type Follower struct {
	cfg    Config
	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	mu        sync.Mutex
	listening bool
	current   *inquiry // unfinished; nil if there is none
	master    string   // the result of the last lookup that had one
}

// New returns a Follower. It does not connect.
func New(cfg Config) *Follower {
	f := &Follower{cfg: cfg}
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	return f
}

// Master returns the address of the master that the sentinels named last, or an empty string.
func (f *Follower) Master() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.master
}

// Close ends what the Follower does, and returns when that is done. LookUp then fails with err.
func (f *Follower) Close(err error) {
	f.mu.Lock()
	f.cancel(err)
	f.mu.Unlock()
	f.tasks.Wait()
}

// inquiry is one question to all sentinels. Callers that dial at the same time share it.
type inquiry struct {
	done chan struct{} // closed when the result is there
	addr string
	err  error
}

// LookUp asks the sentinels, and returns the address of the master.
func (f *Follower) LookUp(ctx context.Context) (string, error) {
	f.mu.Lock()
	if f.ctx.Err() != nil {
		f.mu.Unlock()
		return "", context.Cause(f.ctx)
	}
	if !f.listening {
		f.listening = true
		f.tasks.Go(f.listen)
	}
	l := f.current
	if l == nil {
		l = &inquiry{done: make(chan struct{})}
		f.current = l
		f.tasks.Go(func() { f.perform(l) })
	}
	f.mu.Unlock()
	select {
	case <-l.done:
		return l.addr, l.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (f *Follower) perform(l *inquiry) {
	l.addr, l.err = f.ask()
	if l.err == nil {
		f.mu.Lock()
		f.master = l.addr
		f.mu.Unlock()
		f.cfg.Moved()
	}
	f.mu.Lock()
	f.current = nil
	f.mu.Unlock()
	close(l.done)
}

// answer is what one sentinel says.
type answer struct {
	master string
	epoch  uint64 // of its configuration of the master: the greater, the newer
	err    error
}

// unreached is the error of a sentinel that has not answered.
type unreached struct{ error }

func (u unreached) Unwrap() error { return u.error }

// ask returns the answer with the newest configuration. A sentinel that is cut off from the others may still name a
// former master.
func (f *Follower) ask() (string, error) {
	ctx, cancel := context.WithTimeout(f.ctx, f.cfg.Timeout)
	defer cancel()
	addrs := f.cfg.Addrs
	answers := make(chan answer, len(addrs))
	for _, addr := range addrs {
		f.tasks.Go(func() { answers <- f.askOne(ctx, addr) })
	}
	var best, worst answer
	var late <-chan time.Time
	for range addrs {
		select {
		case a := <-answers:
			switch {
			case a.err == nil && (best.master == "" || a.epoch > best.epoch):
				best = a
			case a.err != nil && (worst.err == nil || errors.As(worst.err, new(unreached))):
				worst = a // a refusal says more than a sentinel that is down
			}
			if best.master != "" && late == nil {
				late = time.After(straggle)
			}
		case <-late:
			return best.master, nil
		}
	}
	if best.master == "" {
		return "", worst.err
	}
	return best.master, nil
}

func (f *Follower) askOne(ctx context.Context, addr string) answer {
	s, err := f.sentinel(ctx, addr)
	if err != nil {
		return answer{err: err}
	}
	defer s.close()
	name := f.cfg.Master
	// The second command describes the former master until a failover is over, so it is used for the epoch only. A user
	// of the sentinel may lack the right to it.
	replies, err := s.call(
		[]string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", name}, []string{"SENTINEL", "MASTER", name})
	if err != nil {
		return answer{err: unreached{f.failure(ctx, addr, err)}}
	}
	switch reply := replies[0].(type) {
	case []any:
		if host, port := text(reply, 0), text(reply, 1); host != "" && port != "" {
			return answer{master: net.JoinHostPort(host, port), epoch: epoch(replies[1])}
		}
	case nil:
		return answer{err: fmt.Errorf("sentinel %s knows no master named %s", addr, name)}
	case Refusal:
		if reply.Code() == "ERR" {
			return answer{err: fmt.Errorf("%s is not a sentinel, or its version is too old: %w", addr, reply)}
		}
		return answer{err: fmt.Errorf("sentinel %s: %w", addr, reply)}
	}
	return answer{err: fmt.Errorf("sentinel %s: an answer that is not an address", addr)}
}

// epoch returns the config-epoch in the reply to SENTINEL MASTER.
func epoch(reply any) uint64 {
	fields, _ := reply.([]any)
	i := slices.Index(fields, any("config-epoch"))
	if i < 0 {
		return 0
	}
	n, _ := strconv.ParseUint(text(fields, i+1), 10, 64)
	return n
}

func text(replies []any, i int) string {
	if i >= len(replies) {
		return ""
	}
	s, _ := replies[i].(string)
	return s
}

// sentinel opens a connection to a sentinel and authenticates it.
func (f *Follower) sentinel(ctx context.Context, addr string) (*connection, error) {
	user, password, err := f.cfg.Login(ctx)
	if err != nil {
		return nil, unreached{fmt.Errorf("sentinel %s: %w", addr, err)}
	}
	conn, err := f.cfg.Dial(ctx, addr)
	if err != nil {
		return nil, unreached{fmt.Errorf("sentinel %s: %w", addr, err)}
	}
	s := newConnection(ctx, conn, f.cfg.Refusal)
	if password == "" {
		return s, nil
	}
	auth := []string{"AUTH", user, password}
	if user == "" {
		auth = []string{"AUTH", password}
	}
	replies, err := s.call(auth)
	if err == nil {
		err, _ = replies[0].(error)
	}
	if err != nil {
		s.close()
		return nil, f.failure(ctx, addr, err)
	}
	return s, nil
}

// failure describes the failure of a connection. At the end of ctx, that only says that the connection was closed.
func (f *Follower) failure(ctx context.Context, addr string, err error) error {
	if ctx.Err() != nil {
		return unreached{fmt.Errorf("sentinel %s: no answer within %v", addr, f.cfg.Timeout)}
	}
	return fmt.Errorf("sentinel %s: %w", addr, err)
}

// listen hears of new masters from one sentinel, and from the next one when that fails, until Close.
func (f *Follower) listen() {
	addrs := f.cfg.Addrs
	for i := rand.IntN(len(addrs)); f.ctx.Err() == nil; i++ {
		f.listenTo(addrs[i%len(addrs)])
		select {
		case <-f.ctx.Done():
		case <-time.After(relisten/2 + rand.N(relisten/2)):
		}
	}
}

func (f *Follower) listenTo(addr string) {
	ctx, cancel := context.WithTimeout(f.ctx, f.cfg.Timeout)
	defer cancel()
	s, err := f.sentinel(ctx, addr)
	if err != nil || !s.outlives(f.ctx) {
		return
	}
	defer s.close()
	if s.send([]string{"SUBSCRIBE", "+switch-master"}) != nil {
		return
	}
	for asked := false; ; {
		switch reply, err := s.receive(silence); {
		case errors.Is(err, os.ErrDeadlineExceeded) && !asked:
			asked = true
			if s.send([]string{"PING"}) != nil {
				return
			}
		case err != nil:
			return
		default:
			asked = false
			f.heard(reply)
		}
	}
}

// heard looks up the master when a sentinel says that there is a new one. It also does so when the subscription begins,
// because there may have been news before. The second lookup has begun after the news, even if the first was under way.
//
// Sentinels that have not heard the news yet may answer before the one that told it. Nobody tells it again, so heard
// asks again for a while.
func (f *Follower) heard(reply any) {
	message, _ := reply.([]any)
	if kind := text(message, 0); kind != "message" && kind != "subscribe" {
		return
	}
	_, _ = f.LookUp(f.ctx)
	_, _ = f.LookUp(f.ctx)
	news := inTheNews(text(message, 2), f.cfg.Master)
	for end := time.Now().Add(doubting); news != "" && f.Master() != news && time.Now().Before(end); {
		select {
		case <-f.ctx.Done():
			return
		case <-time.After(relisten / 2):
		}
		_, _ = f.LookUp(f.ctx)
	}
}

// inTheNews returns the address of the new master in a message of a sentinel, which is the name of the master, its
// former host and port, and its new ones. It returns an empty string if the message is about another master.
func inTheNews(message, master string) string {
	words := strings.Fields(message)
	if len(words) != 5 || words[0] != master {
		return ""
	}
	return net.JoinHostPort(words[3], words[4])
}
