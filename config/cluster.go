package config

import "errors"

// Cluster says how to find the servers of a Redis Cluster.
type Cluster struct {
	// Addrs are the addresses of some of the nodes: enough that one of them answers. The client learns the others from
	// it. The port is 6379 if not given.
	Addrs Addrs `yaml:"addrs,omitempty" json:"addrs,omitempty" url:"-"`
}

func (c *Cluster) check(r *Redis, report Report) {
	if c == nil {
		return
	}
	_, err := c.Addrs.full(redisPort)
	report("cluster.addrs", err)
	if r.DB != 0 {
		report("db", errors.New("a cluster has only database 0: remove it"))
	}
	if r.Replicas > 0 {
		report("replicas", errClusterReplicas)
	}
	if r.Sentinel != nil {
		report("cluster", errors.New("there are sentinels, too: a deployment is found by one or the other"))
	}
}

func (c *Cluster) parse(at Location, db *int, report Report) {
	c.Addrs = parseAddrs(at.Host, redisPort)
	report("db", setDB(db, at.Path))
}

func (c *Cluster) format(db *int) Location {
	return Location{Scheme: "redis+cluster", Host: c.Addrs.format(redisPort), Path: pathDB(db)}
}

// noClusterNode says why a cluster cannot have a vote in a Redlock.
const noClusterNode = "a cluster cannot be a node of a Redlock: it replaces a master by a replica that may have " +
	"forgotten locks, and then votes again; give standalone servers, or use the cluster alone, as redis+cluster://"
