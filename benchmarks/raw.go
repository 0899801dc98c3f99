package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	redigolib "github.com/gomodule/redigo/redis"
	goredislib "github.com/redis/go-redis/v9"
	rueidislib "github.com/redis/rueidis"

	"github.com/golocker/locker/drivers"
)

// The yardsticks send only the two commands that a lock needs: SET NX PX, and a script that compares and deletes.
// They have no random owner, no fencing token, no watch over the lease, no clean-up, and no way to return when a
// context ends. The key is the owner, too.

const compareAndDelete = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end
return 0`

var ttlMillis = fmt.Sprint(ttl.Milliseconds())

// commands are these two commands.
type commands interface {
	load() (sha string, err error)
	set(ctx context.Context, key string) (ok bool, err error)
	del(ctx context.Context, sha, key string) (deleted bool, err error)
	close()
}

type rawSession struct {
	commands
	sha  string
	pool sync.Pool
}

type rawHeld struct {
	session *rawSession
	key     string
}

func openRaw(c commands, err error) (session, error) {
	if err != nil {
		return nil, err
	}
	s := &rawSession{commands: c}
	s.pool.New = func() any { return &rawHeld{session: s} }
	if s.sha, err = c.load(); err != nil {
		c.close()
		return nil, err
	}
	return s, nil
}

func (s *rawSession) Lock(ctx context.Context, key string) (held, error) {
	switch ok, err := s.set(ctx, key); {
	case err != nil:
		return nil, err
	case !ok:
		return nil, fmt.Errorf("%s is held", key)
	}
	h := s.pool.Get().(*rawHeld)
	h.key = key
	return h, nil
}

func (h *rawHeld) Unlock(ctx context.Context) error {
	deleted, err := h.session.del(ctx, h.session.sha, h.key)
	if err == nil && !deleted {
		err = fmt.Errorf("%s was not held", h.key)
	}
	h.session.pool.Put(h)
	return err
}

func (s *rawSession) Close() { s.close() }

// raw calls the client library itself.
func raw(client string) opener {
	return func(addrs []string, l limits) (session, error) {
		switch client {
		case "goredis":
			return openRaw(rawGoredis{newGoredis(addrs[0], l)}, nil)
		case "redigo":
			return openRaw(rawRedigo{newRedigo(addrs[0], l)}, nil)
		}
		c, err := newRueidis(addrs[0], l)
		return openRaw(rawRueidis{c}, err)
	}
}

// rawDriver calls Do of this library's driver.
func rawDriver(client string) opener {
	return func(addrs []string, l limits) (session, error) {
		d, end, err := newDriver(client, addrs[0], l)
		return openRaw(driverCommands{d, end}, err)
	}
}

type rawGoredis struct{ *goredislib.Client }

func (c rawGoredis) load() (string, error) {
	return c.ScriptLoad(context.Background(), compareAndDelete).Result()
}

func (c rawGoredis) set(ctx context.Context, key string) (bool, error) {
	return c.SetNX(ctx, key, key, ttl).Result()
}

func (c rawGoredis) del(ctx context.Context, sha, key string) (bool, error) {
	n, err := c.EvalSha(ctx, sha, []string{key}, key).Int()
	return n == 1, err
}

func (c rawGoredis) close() { _ = c.Close() }

// rawRedigo ignores contexts, because redigo's own support for them costs a goroutine per call.
type rawRedigo struct{ *redigolib.Pool }

func (p rawRedigo) do(name string, args ...any) (any, error) {
	conn := p.Get()
	reply, err := conn.Do(name, args...)
	_ = conn.Close()
	return reply, err
}

func (p rawRedigo) load() (string, error) {
	return redigolib.String(p.do("SCRIPT", "LOAD", compareAndDelete))
}

func (p rawRedigo) set(_ context.Context, key string) (bool, error) {
	reply, err := p.do("SET", key, key, "NX", "PX", ttlMillis)
	return reply != nil, err
}

func (p rawRedigo) del(_ context.Context, sha, key string) (bool, error) {
	reply, err := p.do("EVALSHA", sha, "1", key, key)
	return reply == int64(1), err
}

func (p rawRedigo) close() { _ = p.Close() }

type rawRueidis struct{ rueidislib.Client }

func (c rawRueidis) load() (string, error) {
	return c.Do(context.Background(), c.B().ScriptLoad().Script(compareAndDelete).Build()).ToString()
}

func (c rawRueidis) set(ctx context.Context, key string) (bool, error) {
	err := c.Do(ctx, c.B().Set().Key(key).Value(key).Nx().PxMilliseconds(ttl.Milliseconds()).Build()).Error()
	if rueidislib.IsRedisNil(err) {
		return false, nil
	}
	return err == nil, err
}

func (c rawRueidis) del(ctx context.Context, sha, key string) (bool, error) {
	n, err := c.Do(ctx, c.B().Evalsha().Sha1(sha).Numkeys(1).Key(key).Arg(key).Build()).AsInt64()
	return n == 1, err
}

func (c rawRueidis) close() { c.Close() }

type driverCommands struct {
	drivers.Driver
	end func()
}

func (d driverCommands) one(ctx context.Context, cmd drivers.Command) (drivers.Reply, error) {
	replies, err := d.Do(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if e, ok := replies[0].(drivers.ServerError); ok {
		return nil, e
	}
	return replies[0], nil
}

func (d driverCommands) load() (string, error) { return d.loads(compareAndDelete) }

func (d driverCommands) loads(script string) (sha string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	reply, err := d.one(ctx, drivers.Command{"SCRIPT", "LOAD", script})
	sha, _ = reply.(string)
	return sha, err
}

func (d driverCommands) set(ctx context.Context, key string) (bool, error) {
	reply, err := d.one(ctx, drivers.Command{"SET", key, key, "NX", "PX", ttlMillis})
	return reply != nil, err
}

func (d driverCommands) del(ctx context.Context, sha, key string) (bool, error) {
	reply, err := d.one(ctx, drivers.Command{"EVALSHA", sha, "1", key, key})
	return reply == int64(1), err
}

func (d driverCommands) close() {
	_ = d.Close()
	d.end()
}
