package main

import (
	"context"
	"errors"
	"sync"
	"time"

	rueidislib "github.com/redis/rueidis"
)

// thirdAnswer is the yardstick of Redlock. It has one connection to each node, on which one goroutine sends what has
// gathered. An operation ends when three nodes have answered. Nothing is cleaned up or fenced, and commands that do
// not fit into a node's line are not sent.
//
// With fenced, it also issues a fencing token. That is the least that a Redlock with tokens has to do.
type thirdAnswer struct {
	sha   string
	fence string // SHA of fencedSet; empty: no tokens
	need  int
	nodes []*line
	pool  sync.Pool
}

// line has the commands that wait to be sent to one node.
type line struct {
	client rueidislib.Client
	queue  chan question
	ended  chan struct{}
}

type question struct {
	cmd    rueidislib.Completed
	answer chan<- bool
}

// fencedSet is SET NX PX with a token that is greater than all before. It is what this library does for one, without
// tombstones, queue, hints and guard. The clock is rounded, so that the nodes agree on the token.
const fencedSet = `local seen = redis.call("MGET", KEYS[1], KEYS[2])
if seen[1] then return 0 end
local t = redis.call("TIME")
local now = t[1] * 1000000 + t[2]
local token = math.max(tonumber(seen[2] or "0") + 1, now - now % 10000)
redis.call("SET", KEYS[2], string.format("%.0f", token))
redis.call("SET", KEYS[1], ARGV[1], "PX", ARGV[2])
return 1`

func openThirdAnswer(addrs []string, l limits) (session, error) { return openThird(addrs, l, false) }

func openFencedThirdAnswer(addrs []string, l limits) (session, error) {
	return openThird(addrs, l, true)
}

func openThird(addrs []string, l limits, fenced bool) (session, error) {
	s := &thirdAnswer{need: len(addrs)/2 + 1}
	s.pool.New = func() any { return &thirdHeld{session: s} }
	for _, addr := range addrs {
		option := rueidisOption(addr, l)
		option.PipelineMultiplex = -1 // one connection
		c, err := rueidislib.NewClient(option)
		if err == nil {
			s.sha, err = c.Do(context.Background(), c.B().ScriptLoad().Script(compareAndDelete).Build()).ToString()
		}
		if err == nil && fenced {
			s.fence, err = c.Do(context.Background(), c.B().ScriptLoad().Script(fencedSet).Build()).ToString()
		}
		if err != nil {
			s.Close()
			return nil, err
		}
		node := &line{c, make(chan question, 1024), make(chan struct{})}
		go node.send()
		s.nodes = append(s.nodes, node)
	}
	return s, nil
}

func (l *line) send() {
	defer close(l.ended)
	var batch []question
	var cmds rueidislib.Commands
	for first := range l.queue {
		batch, cmds = append(batch[:0], first), append(cmds[:0], first.cmd)
		for len(l.queue) > 0 && len(batch) < 128 {
			q := <-l.queue
			batch, cmds = append(batch, q), append(cmds, q.cmd)
		}
		var err error
		if len(batch) == 1 {
			r := l.client.Do(context.Background(), cmds[0])
			batch[0].answer <- isYes(r)
			err = r.NonRedisError()
		} else {
			for i, r := range l.client.DoMulti(context.Background(), cmds...) {
				batch[i].answer <- isYes(r)
				err = r.NonRedisError()
			}
		}
		if err != nil { // a dead node is not dialled for every command
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func isYes(r rueidislib.RedisResult) bool {
	m, err := r.ToMessage()
	if err != nil {
		return false
	}
	if n, err := m.AsInt64(); err == nil {
		return n == 1
	}
	return true
}

// ask returns whether a majority said yes. The channel has room for all answers, so that the last may come when
// nobody reads any more.
func (s *thirdAnswer) ask(cmd func(rueidislib.Client) rueidislib.Completed) bool {
	answers := make(chan bool, len(s.nodes))
	asked := 0
	for _, l := range s.nodes {
		select {
		case l.queue <- question{cmd(l.client), answers}:
			asked++
		default:
		}
	}
	yes := 0
	for ; asked > 0 && yes < s.need; asked-- {
		if <-answers {
			yes++
		}
	}
	return yes >= s.need
}

type thirdHeld struct {
	session *thirdAnswer
	key     string
}

var errMinority = errors.New("no majority")

func (s *thirdAnswer) Lock(_ context.Context, key string) (held, error) {
	if !s.ask(func(c rueidislib.Client) rueidislib.Completed {
		if s.fence != "" {
			return c.B().Evalsha().Sha1(s.fence).Numkeys(2).Key(key, "fence").Arg(key, ttlMillis).Build()
		}
		return c.B().Set().Key(key).Value(key).Nx().PxMilliseconds(ttl.Milliseconds()).Build()
	}) {
		return nil, errMinority
	}
	h := s.pool.Get().(*thirdHeld)
	h.key = key
	return h, nil
}

func (h *thirdHeld) Unlock(context.Context) error {
	defer h.session.pool.Put(h)
	if !h.session.ask(func(c rueidislib.Client) rueidislib.Completed {
		return c.B().Evalsha().Sha1(h.session.sha).Numkeys(1).Key(h.key).Arg(h.key).Build()
	}) {
		return errMinority
	}
	return nil
}

func (s *thirdAnswer) Close() {
	for _, l := range s.nodes {
		close(l.queue)
		l.client.Close()
		<-l.ended
	}
}
