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
type thirdAnswer struct {
	sha   string
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

func openThirdAnswer(addrs []string, l limits) (session, error) {
	s := &thirdAnswer{need: len(addrs)/2 + 1}
	s.pool.New = func() any { return &thirdHeld{session: s} }
	for _, addr := range addrs {
		option := rueidisOption(addr, l)
		option.PipelineMultiplex = -1 // one connection
		c, err := rueidislib.NewClient(option)
		if err == nil {
			s.sha, err = c.Do(context.Background(), c.B().ScriptLoad().Script(compareAndDelete).Build()).ToString()
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
