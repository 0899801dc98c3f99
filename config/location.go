package config

import (
	"errors"
	"net/url"
	"strconv"
	"strings"

	"github.com/golocker/locker/drivers"
)

// parse takes the address and the number of the database from a URL.
func (r *Redis) parse(at Location, report Report) {
	switch {
	case strings.HasSuffix(at.Scheme, "+sentinel"):
		r.Sentinel = new(Sentinel)
		r.Sentinel.parse(at, &r.DB, report)
		return
	case strings.HasSuffix(at.Scheme, "+cluster"):
		r.Cluster = new(Cluster)
		r.Cluster.parse(at, &r.DB, report)
		return
	case at.Scheme != "unix":
		r.Addr = fullAddr(at.Host, redisPort)
		report("db", setDB(&r.DB, at.Path))
		return
	}
	const example = "three slashes and the absolute path of the socket, as in unix:///run/redis.sock"
	switch {
	case at.Host != "":
		report("addr", errors.New("the host must be empty: write "+example))
	case strings.Trim(at.Path, "/") == "":
		report("addr", errors.New("missing: write "+example))
	default:
		r.Addr = at.Path
	}
}

func (r *Redis) format() Location {
	switch r.deployment() {
	case drivers.SentinelMaster:
		return r.Sentinel.format(&r.DB)
	case drivers.RedisCluster:
		return r.Cluster.format(&r.DB)
	}
	switch network, addr, err := r.address(); {
	case err != nil: // not shown: it may be part of a secret
		return Location{Path: pathDB(&r.DB)}
	case network == "unix":
		return Location{Scheme: "unix", Path: addr}
	default:
		return Location{Host: escapedAddr(addr), Path: pathDB(&r.DB)}
	}
}

// setDB takes the number of a database from the path of a URL.
func setDB(db *int, path string) error {
	text := strings.TrimPrefix(path, "/")
	if text == "" {
		return nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return errDB
	}
	*db = int(n)
	return nil
}

// pathDB is the reverse of setDB. It clears the number, so that it is not a parameter as well.
func pathDB(db *int) (path string) {
	if *db != 0 {
		path = "/" + strconv.Itoa(*db)
	}
	*db = 0
	return path
}

// parse takes the nodes and the number of the database from a URL.
func (r *Redlock) parse(at Location, report Report) {
	report("db", setDB(&r.DB, at.Path))
	if at.Host == "" {
		return // the check reports that they are missing
	}
	for i, host := range strings.Split(at.Host, ",") {
		addr := fullAddr(host, redisPort)
		if len(host) > 2 && strings.EqualFold(host[:3], "%2f") { // the first slash of the path of a socket
			var err error
			if addr, err = url.PathUnescape(host); err != nil {
				report(nodePath(i)+".addr", errPercent)
			}
		}
		r.Nodes = append(r.Nodes, Node{Addr: addr})
	}
}

func (r *Redlock) format() Location {
	var hosts []string
	for i := range r.Nodes {
		network, addr, err := r.server(i).address()
		switch {
		case err != nil:
			addr = "" // not shown: it may be part of a secret
		case network == "unix":
			addr = strings.ReplaceAll(url.QueryEscape(addr), "+", "%20")
		default:
			addr = escapedAddr(addr)
		}
		hosts = append(hosts, addr)
		if n := &r.Nodes[i]; !nodeNameRE.MatchString(n.Name) {
			n.Name = "" // not shown: it may be part of a secret
		}
	}
	return Location{Host: strings.Join(hosts, ","), Path: pathDB(&r.DB)}
}
