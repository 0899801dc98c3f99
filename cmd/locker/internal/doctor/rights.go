package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/node"
)

// trial is one command that locks need, with the keys of a probe lock. Its effect does not matter.
type trial struct {
	right string // in the notation of ACL SETUSER
	cmd   drivers.Command
}

func (p *checkup) trials() []trial {
	names := node.NamesOf(p.e.Prefix, p.probe("rights"))
	publish, channel := p.publishing(names)
	lock, waiters, queue := names.Keys[0], names.Keys[1], names.Keys[2]
	ts := []trial{
		{"mset", drivers.Command{"MSET", lock, "probe"}},
		{"set", drivers.Command{"SET", lock, "probe", "PX", "10000"}},
		{"get", drivers.Command{"GET", lock}},
		{"mget", drivers.Command{"MGET", lock, names.Counter}}, // the counter is real, so it is only read
		{"append", drivers.Command{"APPEND", lock, ""}},
		{"setrange", drivers.Command{"SETRANGE", lock, "0", "probe"}},
		{"exists", drivers.Command{"EXISTS", lock}},
		{"pttl", drivers.Command{"PTTL", lock}},
		{"pexpire", drivers.Command{"PEXPIRE", lock, "10000"}},
		{"time", drivers.Command{"TIME"}},
		{"zadd", drivers.Command{"ZADD", queue, "1", "probe"}},
		{"zscore", drivers.Command{"ZSCORE", queue, "probe"}},
		{"zrank", drivers.Command{"ZRANK", queue, "probe"}},
		{"zrange", drivers.Command{"ZRANGE", queue, "0", "-1"}},
		{"zrem", drivers.Command{"ZREM", queue, "nobody"}},
		{"zpopmin", drivers.Command{"ZPOPMIN", queue}},
		{"hset", drivers.Command{"HSET", waiters, "probe", "1"}},
		{"hget", drivers.Command{"HGET", waiters, "probe"}},
		{"hscan", drivers.Command{"HSCAN", waiters, "0"}},
		{"hlen", drivers.Command{"HLEN", waiters}},
		{"hkeys", drivers.Command{"HKEYS", waiters}},
		{"hdel", drivers.Command{"HDEL", waiters, "probe"}},
		{strings.ToLower(publish), drivers.Command{publish, channel, ""}},
		{"eval", drivers.Command{"EVAL", "return 1", "1", lock}},
		{"evalsha", drivers.Command{"EVALSHA", strings.Repeat("0", 40), "1", lock}}, // NOSCRIPT is accepted
	}
	for _, name := range names.Keys { // one by one, so that a refusal does not keep the others
		ts = append(ts, trial{"del", drivers.Command{"DEL", name}})
	}
	return ts
}

// publishing returns the command that publishes on the channel of a lock, and this channel.
func (p *checkup) publishing(names node.Names) (command, channel string) {
	if p.sharded() {
		return "SPUBLISH", names.Sharded
	}
	return "PUBLISH", names.Channel
}

// sharded reports whether the node is a Redis Cluster.
func (p *checkup) sharded() bool { return p.Dial.Topology() == drivers.RedisCluster }

// lackedRight returns the right to the command that e refuses to the user, as ACL SETUSER has it, or an empty string if
// e is about something else. The client of a Redis Cluster calls commands of its own, so that need not be the one that
// was sent.
func lackedRight(e drivers.ServerError, sent string) string {
	if e.Code() != "NOPERM" || !containsFold(e, "command") {
		return ""
	}
	if !strings.Contains(string(e), "'") {
		return "+" + sent
	}
	name, _, _ := strings.Cut(quotedWord(e), "|")
	return "+" + name
}

// publishes reports whether cmd is one that publishes.
func publishes(cmd drivers.Command) bool { return strings.HasSuffix(cmd[0], "PUBLISH") }

// rights tries every command that locks need, on keys and channels of this examination under the prefix of the locks.
// It reports whether locks can work.
func (p *checkup) rights(ctx context.Context) bool {
	const check = "rights"
	ts := p.trials()
	cmds := make([]drivers.Command, 0, len(ts))
	for _, t := range ts {
		cmds = append(cmds, t.cmd)
	}
	replies, err := p.ask(ctx, cmds...)
	if err != nil {
		p.fail(check, "run doctor again, and check the network", "%v", err)
		return false
	}
	var missing, unknown []string
	for i, reply := range replies {
		e, refused := refusal(reply)
		switch code := e.Code(); {
		case !refused, code == "NOSCRIPT":
		case publishes(cmds[i]) && (unknownCommand(e) || lackedRight(e, "") == "+"+ts[i].right):
			p.noPublish = e // waiters then poll, which the check of messages reports
		case lackedRight(e, ts[i].right) != "":
			if right := lackedRight(e, ts[i].right); !slices.Contains(missing, right) {
				missing = append(missing, right)
			}
		case code == "NOPERM": // a key or a channel is refused; see below
		case unknownCommand(e):
			if !slices.Contains(unknown, cmds[i][0]) {
				unknown = append(unknown, cmds[i][0])
			}
		default:
			c := Refusal(e, p.Username)
			p.fail(check, c.Fix, "%s (%s)", c.Text, Short(e))
			return false
		}
	}
	if len(unknown) > 0 {
		p.fail(check, "remove the rename-command for "+list(unknown)+" from redis.conf; every Redis 5 has them, and "+
			"locks need them",
			"renamed, disabled or missing: %s", list(unknown))
		return false
	}
	patterns := p.patterns(ctx)
	if len(missing)+len(patterns) == 0 {
		p.ok(check, "user %q has all rights that locks need", p.user())
		return true
	}
	p.fail(check, "ACL SETUSER "+p.user()+" "+strings.Join(append(patterns, missing...), " "),
		"user %q may not do what locks need; it lacks %s", p.user(), list(append(slices.Clone(patterns), missing...)))
	return false
}

// patterns returns the patterns of keys and channels that the user lacks. The names derived from keys with a hash tag
// or a brace have other forms.
func (p *checkup) patterns(ctx context.Context) (missing []string) {
	lack := func(sign, name string) {
		pattern := sign + p.e.Prefix + "*"
		switch rest, braced := strings.CutPrefix(name, "{"); {
		case braced && strings.HasPrefix(rest, p.e.Prefix):
			pattern = sign + "{" + p.e.Prefix + "*"
		case braced && p.e.Prefix != "":
			pattern = sign + "{*}}" + p.e.Prefix + "*"
		}
		if !slices.Contains(missing, pattern) {
			missing = append(missing, pattern)
		}
	}
	for _, key := range []string{p.probe("k"), p.probe("{k}"), p.probe("}")} {
		names := node.NamesOf(p.e.Prefix, key)
		var cmds []drivers.Command
		for _, name := range append(names.Keys, names.Counter) {
			cmds = append(cmds, drivers.Command{"EXISTS", name})
		}
		publish, channel := p.publishing(names)
		cmds = append(cmds, drivers.Command{publish, channel, ""})
		replies, err := p.ask(ctx, cmds...)
		if err != nil {
			return missing
		}
		for i, reply := range replies {
			if e, _ := refusal(reply); e.Code() != "NOPERM" || lackedRight(e, "") != "" {
				continue
			}
			sign := "~"
			if publishes(cmds[i]) {
				sign = "&"
			}
			lack(sign, cmds[i][1])
		}
	}
	return missing
}
