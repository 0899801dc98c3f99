package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker/drivers"
)

func containsFold(e drivers.ServerError, what string) bool {
	return strings.Contains(strings.ToLower(string(e)), strings.ToLower(what))
}

// readInfo reads the output of INFO.
func (p *patient) readInfo(ctx context.Context) {
	const check = "info"
	replies, err := p.ask(ctx, drivers.Command{"INFO"})
	if err != nil {
		p.fail(check, "the connection is not reliable: run doctor again, and check the network", "INFO: %v", err)
		return
	}
	if e, refused := refusal(replies[0]); refused {
		fix := "ACL SETUSER " + p.user() + " +info"
		if e.Code() != "NOPERM" {
			fix = Refusal(e, p.Username).Fix
		}
		p.warn(check, fix,
			"version, role, persistence and eviction are not known, because INFO is refused: %s", Short(e))
		return
	}
	text, _ := replies[0].(string)
	p.info = map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			p.info[name] = value
		}
	}
	if p.info["redis_version"] == "" {
		p.info = nil
		p.warn(check, "check what is behind the address: a stand-in, or a proxy that answers for Redis",
			"version, role, persistence and eviction are not known, because INFO tells nothing of them")
	}
}

// mode returns "standalone", "cluster" or "sentinel". The field has a different name in each kind of server.
func (p *patient) mode() string {
	return cmp.Or(p.info["redis_mode"], p.info["server_mode"], p.info["redict_mode"])
}

func (p *patient) number(name string) int64 {
	n, _ := strconv.ParseInt(p.info[name], 10, 64)
	return n
}

func (p *patient) version() {
	const check = "version"
	version := p.info["redis_version"] // other servers report the Redis version that they are compatible with
	product := "Redis " + version
	if v := p.info["valkey_version"]; v != "" {
		product = "Valkey " + v
	} else if v := p.info["redict_version"]; v != "" {
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

func (p *patient) role() {
	const check = "role"
	switch mode := p.mode(); {
	case mode == "cluster" && p.e.Redlock:
		p.fail(check, "use standalone servers for Redlock: a cluster fails over by itself, and forgets locks then",
			"a node of a Redis Cluster")
		return
	case mode == "cluster":
		p.warn(check, "hand a client that knows clusters to single.New: a URL reaches this one node only",
			"a node of a Redis Cluster")
	}
	switch role := p.info["role"]; {
	case role != "master":
		p.fail(check, "give the address of its master, "+p.info["master_host"]+":"+p.info["master_port"]+", or make "+
			"it one by REPLICAOF NO ONE",
			"it is a replica of %s:%s: locks cannot be taken on it, or vanish with the next synchronisation",
			p.info["master_host"], p.info["master_port"])
	case p.number("connected_slaves") > 0:
		p.warn(check, "see to it that none of them is promoted while locks may be held that it has not got; for "+
			"Redlock, use standalone servers",
			"master with %s replicas: if one takes over without the latest writes, a lock can be granted twice",
			p.info["connected_slaves"])
	default:
		p.ok(check, "master without replicas")
	}
}

// persistence checks the assumption E1 of docs/safety.md: no node loses a lock before the end of its TTL.
func (p *patient) persistence(ctx context.Context) {
	const check = "persistence"
	away := fmt.Sprintf("or keep it away after a restart for as long as the longest TTL (%v if that is what all use)",
		p.e.TTL)
	if p.info["aof_enabled"] != "1" {
		p.warn(check, "CONFIG SET appendonly yes and appendfsync always, and write both to redis.conf; "+away,
			"the append-only file is off: a restart forgets locks that are held, and a second holder can get in")
		return
	}
	if s := p.info["aof_last_write_status"]; s != "" && s != "ok" {
		p.fail(check, "make room on its disk, or replace it; see the server's log",
			"the append-only file cannot be written: aof_last_write_status is %s", s)
		return
	}
	replies, err := p.ask(ctx, drivers.Command{"CONFIG", "GET", "appendfsync"})
	disabled := false
	if err == nil {
		p.aofSync = setting(replies[0], "appendfsync")
		e, refused := refusal(replies[0])
		disabled = refused && e.Code() != "NOPERM"
	}
	switch {
	case p.aofSync == "always":
		p.ok(check, "the append-only file has every write (appendfsync always)")
	case disabled:
		p.warn(check, "check appendfsync in the server's configuration: it should be always",
			"the append-only file is on, but whether it has every write is not known: CONFIG is disabled")
	case p.aofSync == "":
		p.warn(check, "check CONFIG GET appendfsync: it should be always; or ACL SETUSER "+p.user()+" +config|get, "+
			"and run this again",
			"the append-only file is on, but whether it has every write is not known: CONFIG GET is refused")
	default:
		p.warn(check, "CONFIG SET appendfsync always, and write it to redis.conf; "+away,
			"appendfsync is %s: a crash of the machine forgets the locks of the last second or more", p.aofSync)
	}
}

func (p *patient) eviction() {
	const check = "eviction"
	policy, limit, evicted := p.info["maxmemory_policy"], p.number("maxmemory"), p.number("evicted_keys")
	const fix = "CONFIG SET maxmemory-policy noeviction, and write it to redis.conf: or use a server for locks " +
		"alone. " +
		"The volatile policies evict what has an expiry, which locks have"
	switch {
	case policy == "":
		p.warn(check, "check CONFIG GET maxmemory-policy: it should be noeviction", "the policy cannot be read")
	case policy == "noeviction":
		p.ok(check, "noeviction")
	case evicted > 0:
		p.fail(check, fix, "%s, and %d keys have been evicted: locks may have been among them", policy, evicted)
	case limit > 0:
		p.fail(check, fix, "%s: when its %d bytes of memory are full it deletes locks", policy, limit)
	default:
		p.warn(check, fix, "%s: without maxmemory it deletes nothing, but as soon as that is set it deletes locks",
			policy)
	}
}

func (p *patient) uptime() {
	const check = "uptime"
	up := time.Duration(p.number("uptime_in_seconds")) * time.Second
	if up < p.e.TTL && p.aofSync != "always" {
		p.warn(check, fmt.Sprintf("keep it away from clients for the longest TTL after a restart (%v if that is what "+
			"all use)", p.e.TTL),
			"started %v ago: it may have forgotten locks that are still held", up)
		return
	}
	p.ok(check, "%v", up)
}

// setting reads a reply to CONFIG GET: a list in RESP2 and a map in RESP3.
func setting(reply drivers.Reply, name string) string {
	var value any
	switch r := reply.(type) {
	case []drivers.Reply:
		if len(r) == 2 {
			value = r[1]
		}
	case map[string]any:
		value = r[name]
	case map[any]any:
		value = r[name]
	}
	s, _ := value.(string)
	return s
}
