package doctor

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/golocker/locker/drivers"
)

// Cause is the reason why a server cannot be used, with advice.
type Cause struct{ Text, Fix string }

// Refusal explains an error reply. user is the refused user; empty means the default user.
func Refusal(e drivers.ServerError, user string) Cause {
	if user == "" {
		user = "default"
	}
	const write = "it takes no writes: "
	switch code := e.Code(); {
	case code == "NOAUTH":
		return Cause{"it wants a password",
			"give user name and password: in the URL, by LOCKER_REDIS_PASSWORD, or in a password_file"}
	case code == "ERR" && containsFold(e, "without any password configured"):
		return Cause{"a password was given, and it has none",
			"leave the password out, or set one on the server (requirepass)"}
	case code == "WRONGPASS", code == "ERR" && containsFold(e, "invalid password"):
		return Cause{"it refuses the password",
			"check the password of user " + strconv.Quote(user) + "; on the server, ACL LIST shows the users"}
	case code == "NOPERM":
		return Cause{"user " + strconv.Quote(user) + " lacks a right",
			"locker doctor names the ACL rules that are missing"}
	case code == "DENIED":
		return Cause{"it is in protected mode: without a password it serves its own machine only",
			"set a password on the server (requirepass) and give it here; or, in a network that you trust, set " +
				"protected-mode no"}
	case containsFold(e, "max number of clients"):
		return Cause{"it takes no more connections",
			"raise maxclients, or find out who opens so many connections (CLIENT LIST)"}
	case code == "LOADING":
		return Cause{"it is still loading its data",
			"wait until it has; if it has just restarted, see docs/safety.md, E1"}
	case code == "BUSY":
		return Cause{"a script of another program keeps it busy", "wait, or SCRIPT KILL on the server"}
	case code == "READONLY", code == "MASTERDOWN":
		return Cause{write + "it is a replica", "give the address of its master"}
	case code == "OOM":
		return Cause{write + "its memory is full", "raise maxmemory, or use a server for locks alone"}
	case code == "MISCONF":
		return Cause{write + "it cannot save its data",
			"make room on its disk, or mend what its log names; it checks while stop-writes-on-bgsave-error is yes"}
	case code == "NOREPLICAS":
		return Cause{write + "fewer replicas are connected than its min-replicas-to-write",
			"connect its replicas, or lower min-replicas-to-write"}
	case code == "CLUSTERDOWN":
		return Cause{"it is a node of a Redis Cluster that is down",
			"see CLUSTER INFO; or use a server that is not in cluster mode"}
	case code == "MOVED", code == "ASK", code == "CROSSSLOT", code == "TRYAGAIN":
		return Cause{"it is a node of a Redis Cluster, and other nodes have some of the keys",
			"write redis+cluster://, which reaches all of its nodes"}
	case containsFold(e, "SELECT is not allowed in cluster mode"):
		return Cause{"it is a node of a Redis Cluster, which has database 0 only",
			"leave the number of the database out"}
	case containsFold(e, "DB index"):
		return Cause{"it has no database of that number", "use a lower number, or raise databases in redis.conf"}
	case containsFold(e, "cluster support disabled"):
		return noCluster
	case unknownCommand(e) && strings.EqualFold(quotedWord(e), "SENTINEL"):
		return Cause{"it is not a sentinel",
			"give the addresses of the sentinels, whose port is 26379 by default; write redis:// for one server"}
	case unknownCommand(e):
		return Cause{"a command is renamed, disabled or missing",
			"remove the rename-command for " + quotedWord(e) + " from redis.conf; but a proxy may not have it at all, and " +
				"a sentinel does not: write redis+sentinel://host:26379/mymaster for the master that it names"}
	}
	return Cause{"it refuses to serve", "see the server's log"}
}

var noCluster = Cause{"it is not a node of a Redis Cluster",
	"write redis:// for one server, or redis+sentinel:// for the master that sentinels name"}

// OfSentinel explains an error reply of one of the sentinels. It returns false if err has none.
func OfSentinel(dial drivers.Config, err error) (Cause, bool) {
	var e drivers.ServerError
	if dial.Sentinel == nil || !errors.As(err, &e) {
		return Cause{}, false
	}
	text := err.Error()
	if !slices.ContainsFunc(dial.Sentinel.Addrs, func(addr string) bool {
		return strings.Contains(text, "sentinel "+addr+": ") || strings.Contains(text, addr+" is not a sentinel")
	}) {
		return Cause{}, false
	}
	switch e.Code() {
	case "NOAUTH", "WRONGPASS":
		return Cause{"a sentinel refuses the connection",
			"give user name and password of the sentinels: sentinel_username and sentinel_password_file in the URL, or " +
				"LOCKER_REDIS_SENTINEL_PASSWORD"}, true
	case "NOPERM":
		return Cause{"the user of the sentinels lacks a right",
			"ACL SETUSER on the sentinels: +sentinel +subscribe +ping"}, true
	}
	return Refusal(e, ""), true
}

func unknownCommand(e drivers.ServerError) bool { return containsFold(e, "unknown command") }

// quotedWord returns the first quoted word of the reply.
func quotedWord(e drivers.ServerError) string {
	words := strings.FieldsFunc(string(e), func(r rune) bool { return r == '\'' || r == '`' })
	return words[min(1, len(words)-1)]
}

// Short returns an error reply without advice, and without the command that was sent.
func Short(e drivers.ServerError) string {
	text := e.Error()
	for _, end := range []string{". ", ", with args", " script: "} {
		text, _, _ = strings.Cut(text, end)
	}
	return strings.TrimSuffix(text, ".")
}
