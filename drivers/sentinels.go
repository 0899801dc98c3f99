package drivers

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

// inquiry is one question to all sentinels. Callers that dial at the same time share it.
type inquiry struct {
	done chan struct{} // closed when the result is there
	addr string
	err  error
}

// lookUp returns the address of the master.
func (d *Dialer) lookUp(ctx context.Context) (string, error) {
	d.mu.Lock()
	if d.ctx.Err() != nil {
		d.mu.Unlock()
		return "", ErrClosed
	}
	if !d.listening {
		d.listening = true
		d.tasks.Go(d.listen)
	}
	l := d.current
	if l == nil {
		l = &inquiry{done: make(chan struct{})}
		d.current = l
		d.tasks.Go(func() { d.perform(l) })
	}
	d.mu.Unlock()
	select {
	case <-l.done:
		return l.addr, l.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (d *Dialer) perform(l *inquiry) {
	l.addr, l.err = d.ask()
	if l.err == nil {
		d.follow(l.addr)
	}
	d.mu.Lock()
	d.current = nil
	d.mu.Unlock()
	close(l.done)
}

// answer is what one sentinel says.
type answer struct {
	master string
	epoch  uint64 // of its configuration of the master: the greater, the newer
	err    error
}

// ask returns the answer with the newest configuration. A sentinel that is cut off from the others may still name a
// former master.
func (d *Dialer) ask() (string, error) {
	ctx, cancel := context.WithTimeout(d.ctx, d.cfg.timeout())
	defer cancel()
	addrs := d.cfg.Sentinel.Addrs
	answers := make(chan answer, len(addrs))
	for _, addr := range addrs {
		d.tasks.Go(func() { answers <- d.askOne(ctx, addr) })
	}
	var best, worst answer
	var late <-chan time.Time
	for range addrs {
		select {
		case a := <-answers:
			switch {
			case a.err == nil && (best.master == "" || a.epoch > best.epoch):
				best = a
			case a.err != nil && (worst.err == nil || errors.Is(worst.err, ErrNotSent)):
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

func (d *Dialer) askOne(ctx context.Context, addr string) answer {
	s, err := d.sentinel(ctx, addr)
	if err != nil {
		return answer{err: err}
	}
	defer s.close()
	name := d.cfg.Sentinel.Master
	// The second command describes the former master until a failover is over, so it is used for the epoch only. A user
	// of the sentinel may lack the right to it.
	replies, err := s.call(
		Command{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", name}, Command{"SENTINEL", "MASTER", name})
	if err != nil {
		return answer{err: NotSent(d.failure(ctx, addr, err))}
	}
	switch reply := replies[0].(type) {
	case []Reply:
		if host, port := text(reply, 0), text(reply, 1); host != "" && port != "" {
			return answer{master: net.JoinHostPort(host, port), epoch: epoch(replies[1])}
		}
	case nil:
		return answer{err: fmt.Errorf("sentinel %s knows no master named %s", addr, name)}
	case ServerError:
		if reply.Code() == "ERR" {
			return answer{err: fmt.Errorf("%s is not a sentinel, or its version is too old: %w", addr, reply)}
		}
		return answer{err: fmt.Errorf("sentinel %s: %w", addr, reply)}
	}
	return answer{err: fmt.Errorf("sentinel %s: an answer that is not an address", addr)}
}

// epoch returns the config-epoch in the reply to SENTINEL MASTER.
func epoch(reply Reply) uint64 {
	fields, _ := reply.([]Reply)
	i := slices.Index(fields, Reply("config-epoch"))
	if i < 0 {
		return 0
	}
	n, _ := strconv.ParseUint(text(fields, i+1), 10, 64)
	return n
}

func text(replies []Reply, i int) string {
	if i >= len(replies) {
		return ""
	}
	s, _ := replies[i].(string)
	return s
}

// sentinel opens a connection to a sentinel and authenticates it.
func (d *Dialer) sentinel(ctx context.Context, addr string) (*exchange, error) {
	c := d.cfg.AtSentinel(addr)
	user, password, err := c.Login(ctx)
	if err != nil {
		return nil, fmt.Errorf("sentinel %s: %w", addr, err)
	}
	conn, err := c.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("sentinel %s: %w", addr, err)
	}
	s := newExchange(ctx, conn)
	if password == "" {
		return s, nil
	}
	auth := Command{"AUTH", user, password}
	if user == "" {
		auth = Command{"AUTH", password}
	}
	replies, err := s.call(auth)
	if err == nil {
		err, _ = replies[0].(error)
	}
	if err != nil {
		s.close()
		return nil, d.failure(ctx, addr, err)
	}
	return s, nil
}

// failure describes the failure of an exchange. At the end of ctx, that only says that the connection was closed.
func (d *Dialer) failure(ctx context.Context, addr string, err error) error {
	if ctx.Err() != nil {
		return NotSent(fmt.Errorf("sentinel %s: no answer within %v", addr, d.cfg.timeout()))
	}
	return fmt.Errorf("sentinel %s: %w", addr, err)
}

// listen hears of new masters from one sentinel, and from the next one when that fails, until Close.
func (d *Dialer) listen() {
	addrs := d.cfg.Sentinel.Addrs
	for i := rand.IntN(len(addrs)); d.ctx.Err() == nil; i++ {
		d.listenTo(addrs[i%len(addrs)])
		select {
		case <-d.ctx.Done():
		case <-time.After(relisten/2 + rand.N(relisten/2)):
		}
	}
}

func (d *Dialer) listenTo(addr string) {
	ctx, cancel := context.WithTimeout(d.ctx, d.cfg.timeout())
	defer cancel()
	s, err := d.sentinel(ctx, addr)
	if err != nil || !s.outlives(d.ctx) {
		return
	}
	defer s.close()
	if s.send(Command{"SUBSCRIBE", "+switch-master"}) != nil {
		return
	}
	for asked := false; ; {
		switch reply, err := s.receive(silence); {
		case errors.Is(err, os.ErrDeadlineExceeded) && !asked:
			asked = true
			if s.send(Command{"PING"}) != nil {
				return
			}
		case err != nil:
			return
		default:
			asked = false
			d.heard(reply)
		}
	}
}

// heard looks up the master when a sentinel says that there is a new one. It also does so when the subscription begins,
// because there may have been news before. The second lookup has begun after the news, even if the first was under way.
//
// Sentinels that have not heard the news yet may answer before the one that told it. Nobody tells it again, so heard
// asks again for a while.
func (d *Dialer) heard(reply Reply) {
	message, _ := reply.([]Reply)
	if kind := text(message, 0); kind != "message" && kind != "subscribe" {
		return
	}
	_, _ = d.lookUp(d.ctx)
	_, _ = d.lookUp(d.ctx)
	news := inTheNews(text(message, 2), d.cfg.Sentinel.Master)
	for end := time.Now().Add(doubting); news != "" && !d.follows(news) && time.Now().Before(end); {
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(relisten / 2):
		}
		_, _ = d.lookUp(d.ctx)
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
