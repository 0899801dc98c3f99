package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/settings"
)

func containsFold(e drivers.ServerError, what string) bool {
	return strings.Contains(strings.ToLower(string(e)), strings.ToLower(what))
}

// readSettings asks the server for its settings.
func (p *checkup) readSettings(ctx context.Context) {
	const check = "info"
	replies, err := p.ask(ctx, settings.Questions()...)
	if err != nil {
		p.fail(check, "the connection is not reliable: run doctor again, and check the network", "INFO: %v", err)
		return
	}
	p.settings = settings.Read(replies)
	switch e := p.settings.NoInfo; {
	case e.Code() == "NOPERM":
		p.warn(check, "ACL SETUSER "+p.user()+" +info", noInfo+"INFO is refused: %s", Short(e))
	case e != "":
		p.warn(check, Refusal(e, p.Username).Fix, noInfo+"INFO is refused: %s", Short(e))
	case len(p.settings.Info) == 0:
		p.warn(check, "check what is behind the address: a stand-in, or a proxy that answers for Redis",
			noInfo+"INFO tells nothing of them")
	}
}

const noInfo = "version, role, persistence and eviction are not known, because "

// unknown names the settings that the server did not tell.
func (p *checkup) unknown() {
	names := p.settings.Unknown()
	if len(names) == 0 {
		return
	}
	text := "these settings are not known, because CONFIG GET "
	fix := "look at them in the server's configuration, or in the documentation of the service that runs it: " +
		"docs/redis.md says what they should be"
	switch e := p.settings.NoConfig; {
	case e == "":
		text += "does not tell them: "
	case e.Code() == "NOPERM":
		text += "is refused: "
		fix = "ACL SETUSER " + p.user() + " +config|get (+config before Redis 7), and run this again; or " + fix
	default:
		text += "is disabled: "
	}
	p.warn("settings", fix, "%s", text+list(names))
}

// mode returns "standalone", "cluster" or "sentinel". The field has a different name in each kind of server.
func (p *checkup) mode() string {
	return cmp.Or(p.settings.Info["redis_mode"], p.settings.Info["server_mode"], p.settings.Info["redict_mode"])
}

func (p *checkup) number(name string) int64 {
	n, _ := strconv.ParseInt(p.settings.Info[name], 10, 64)
	return n
}

func (p *checkup) version() {
	const check = "version"
	version := p.settings.Info["redis_version"] // other servers report the Redis version that they are compatible with
	product := "Redis " + version
	if v := p.settings.Info["valkey_version"]; v != "" {
		product = "Valkey " + v
	} else if v := p.settings.Info["redict_version"]; v != "" {
		product = "Redict " + v
	}
	major, _, _ := strings.Cut(version, ".")
	switch n, err := strconv.Atoi(major); {
	case err != nil || n < 5:
		p.fail(check, "upgrade to Redis 5 at least: the scripts write after TIME", "%s", product)
	default:
		p.ok(check, "%s", product)
	}
}

func (p *checkup) role() {
	const check = "role"
	switch mode := p.mode(); {
	case mode == "cluster" && p.e.Redlock:
		p.fail(check, "use standalone servers for Redlock: a cluster fails over by itself, and forgets locks then",
			"a node of a Redis Cluster")
		return
	case mode == "cluster" && p.Dial.Topology() != drivers.RedisCluster:
		p.warn(check, "write redis+cluster://, which reaches all of its nodes; redis:// reaches this one only",
			"a node of a Redis Cluster")
	}
	switch role := p.settings.Info["role"]; {
	case role != "master":
		master := p.settings.Info["master_host"] + ":" + p.settings.Info["master_port"]
		p.fail(check, "give the address of its master, "+master+", or make it one by REPLICAOF NO ONE",
			"it is a replica of %s: locks cannot be taken on it, or vanish with the next synchronisation", master)
	case p.number("connected_slaves") > 0:
		p.ok(check, "master")
	default:
		p.ok(check, "master without replicas")
	}
}

func (p *checkup) uptime() {
	const check = "uptime"
	up := time.Duration(p.number("uptime_in_seconds")) * time.Second
	durable := p.settings.Info["aof_enabled"] == "1" && p.settings.Config["appendfsync"] == "always"
	if up < p.e.TTL && !durable && p.e.Guard == 0 {
		p.warn(check, fmt.Sprintf("keep it away from clients for the longest TTL after a restart (%v if that is what "+
			"all use)", p.e.TTL),
			"started %v ago: it may have forgotten locks that are still held", up)
		return
	}
	p.ok(check, "%v", up)
}
