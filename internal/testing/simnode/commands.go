package simnode

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/golocker/locker/drivers"
)

// status is a reply such as OK.
type status string

var wrongType = drivers.ServerError("WRONGTYPE Operation against a key holding the wrong kind of value")

func (e entry) isString() bool { return e.scores == nil && e.fields == nil }

// ranked returns the members of a sorted set in order.
func (e entry) ranked() []string {
	return slices.SortedFunc(maps.Keys(e.scores), func(a, b string) int {
		return cmp.Or(cmp.Compare(e.scores[a], e.scores[b]), strings.Compare(a, b))
	})
}

func (n *Node) store(key string, e entry) {
	if (e.scores != nil && len(e.scores) == 0) || (e.fields != nil && len(e.fields) == 0) {
		delete(n.keys, key)
		return
	}
	n.keys[key] = e
}

// command executes one of the commands that the scripts use, and notes what it does to locks.
func (n *Node) command(w []string) any {
	r := n.redis(w)
	if n.changes == nil {
		return r
	}
	switch strings.ToUpper(w[0]) {
	case "SET":
		if r == status("OK") {
			n.changes[w[1]] = append(n.changes[w[1]], n.state(w[1]))
		}
	case "DEL":
		for _, key := range w[1:] {
			n.changes[key] = append(n.changes[key], n.state(key))
		}
	}
	return r
}

// scan is SCAN for keys that begin with a text in which \ may be before a character. A cursor is the hash of the last
// key, so others may come and go.
func (n *Node) scan(cursor, prefix, count string) any {
	prefix = escaped.ReplaceAllString(prefix, "$1")
	last, _ := strconv.ParseUint(cursor, 10, 64)
	byHash := make(map[uint64]string)
	for key := range n.keys {
		h := fnv.New64a()
		_, _ = h.Write([]byte(key))
		byHash[h.Sum64()] = key
	}
	var found []any
	looked := int64(0)
	for _, at := range slices.Sorted(maps.Keys(byHash)) {
		if at <= last {
			continue
		}
		if looked++; looked > number(count) {
			return []any{strconv.FormatUint(last, 10), found}
		}
		last = at
		if _, ok := n.get(byHash[at]); ok && strings.HasPrefix(byHash[at], prefix) {
			found = append(found, byHash[at])
		}
	}
	return []any{"0", found}
}

var escaped = regexp.MustCompile(`(?s)\\(.)`)

func (n *Node) redis(w []string) any {
	name := strings.ToUpper(w[0])
	switch name {
	case "TIME":
		us := n.now().Add(n.Skew).UnixMicro()
		return []any{strconv.FormatInt(us/1e6, 10), strconv.FormatInt(us%1e6, 10)}
	case "INFO":
		if n.NoInfo {
			return drivers.ServerError("NOPERM this user has no permissions to run the 'info' command")
		}
		if w[1] == "server" {
			return fmt.Sprintf("# Server\r\nrun_id:%p\r\n", n)
		}
		return "# Replication\r\nrole:master\r\nmaster_replid:" + n.incarnation() + "\r\n"
	case "CLUSTER":
		return "id 127.0.0.1:1@2 myself,master - 0 0 1 connected " + n.slots + "\n"
	case "SCAN":
		return n.scan(w[1], strings.TrimSuffix(w[3], "*"), w[5])
	case "PUBLISH", "SPUBLISH":
		return n.publish(w[1], w[2])
	case "MGET":
		var all []any
		for _, key := range w[1:] {
			if e, ok := n.get(key); ok && e.isString() {
				all = append(all, e.value)
			} else {
				all = append(all, nil)
			}
		}
		return all
	case "MSET":
		for i := 1; i+1 < len(w); i += 2 {
			n.keys[w[i]] = entry{value: w[i+1]}
		}
		return status("OK")
	case "DEL", "EXISTS":
		count := int64(0)
		for _, key := range w[1:] {
			if _, ok := n.get(key); ok {
				count++
				if name == "DEL" {
					delete(n.keys, key)
				}
			}
		}
		return count
	}
	key := w[1]
	e, ok := n.get(key)
	switch name {
	case "SET":
		set := entry{value: w[2]}
		for i := 3; i < len(w); i++ {
			switch strings.ToUpper(w[i]) {
			case "PX":
				ms := number(w[i+1])
				if ms <= 0 {
					return drivers.ServerError("ERR invalid expire time in 'set' command")
				}
				set.expires = n.in(ms)
				i++
			case "NX":
				if ok {
					return nil
				}
			}
		}
		n.keys[key] = set
		return status("OK")
	case "PTTL":
		switch {
		case !ok:
			return int64(-2)
		case e.expires.IsZero():
			return int64(-1)
		}
		return n.left(e)
	case "PEXPIRE":
		if !ok {
			return int64(0)
		}
		e.expires = n.after(w[2])
		n.keys[key] = e
		return int64(1)
	}
	var fits bool
	switch name[0] {
	case 'Z':
		if fits = !ok || e.scores != nil; e.scores == nil {
			e.scores = map[string]int64{}
		}
	case 'H':
		if fits = !ok || e.fields != nil; e.fields == nil {
			e.fields = map[string]string{}
		}
	default:
		fits = !ok || e.isString()
	}
	if !fits {
		return wrongType
	}
	switch name {
	case "GET":
		if !ok {
			return nil
		}
		return e.value
	case "APPEND":
		e.value += w[2]
		n.keys[key] = e
		return int64(len(e.value))
	case "SETRANGE":
		at := int(number(w[2]))
		e.value = e.value[:at] + w[3] + e.value[min(len(e.value), at+len(w[3])):]
		n.keys[key] = e
		return int64(len(e.value))
	case "HGET":
		if v, has := e.fields[w[2]]; has {
			return v
		}
		return nil
	case "HSET":
		before := len(e.fields)
		for i := 2; i+1 < len(w); i += 2 {
			e.fields[w[i]] = w[i+1]
		}
		n.keys[key] = e
		return int64(len(e.fields) - before)
	case "HDEL":
		before := len(e.fields)
		for _, field := range w[2:] {
			delete(e.fields, field)
		}
		if ok {
			n.store(key, e)
		}
		return int64(before - len(e.fields))
	case "HLEN":
		return int64(len(e.fields))
	case "HKEYS":
		all := []any{}
		for _, f := range slices.Sorted(maps.Keys(e.fields)) {
			all = append(all, f)
		}
		return all
	case "HSCAN":
		var all []any
		for _, f := range slices.Sorted(maps.Keys(e.fields)) {
			all = append(all, f, e.fields[f])
		}
		return []any{"0", all}
	case "ZADD":
		if how := w[2]; how == "NX" || how == "XX" {
			w = append(slices.Clone(w[:2]), w[3:]...)
			if _, has := e.scores[w[3]]; has == (how == "NX") {
				return int64(0)
			}
		}
		before := len(e.scores)
		e.scores[w[3]] = number(w[2])
		n.keys[key] = e
		return int64(len(e.scores) - before)
	case "ZREM":
		before := len(e.scores)
		for _, member := range w[2:] {
			delete(e.scores, member)
		}
		if ok {
			n.store(key, e)
		}
		return int64(before - len(e.scores))
	case "ZSCORE":
		if s, has := e.scores[w[2]]; has {
			return strconv.FormatInt(s, 10)
		}
		return nil
	case "ZRANK":
		if i := slices.Index(e.ranked(), w[2]); i >= 0 {
			return int64(i)
		}
		return nil
	case "ZPOPMIN":
		order := e.ranked()
		if len(order) == 0 {
			return []any{}
		}
		s := strconv.FormatInt(e.scores[order[0]], 10)
		delete(e.scores, order[0])
		n.store(key, e)
		return []any{order[0], s}
	case "ZRANGE":
		order := e.ranked()
		from, to := int(number(w[2])), int(number(w[3]))
		if from < 0 {
			from = max(0, from+len(order))
		}
		if to < 0 {
			to += len(order)
		}
		all := []any{}
		for i := from; i <= to && i < len(order); i++ {
			all = append(all, order[i])
			if len(w) > 4 {
				all = append(all, strconv.FormatInt(e.scores[order[i]], 10))
			}
		}
		return all
	}
	return drivers.ServerError("ERR unknown command '" + w[0] + "'")
}
