package drivers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Sentinel says how to find the master of a deployment whose failovers are managed by Redis Sentinel.
type Sentinel struct {
	// Master is the name under which the sentinels know the deployment. It must not be empty.
	Master string

	// Addrs are the addresses of sentinels, as host:port. At least one is needed. A [Dialer] asks all of them at the
	// same time.
	Addrs []string

	// Username and Password authenticate the connections to the sentinels. They follow the rules of those of [Config].
	Username, Password string

	// Credentials, if it is not nil, is called for every new connection to a sentinel, as that of [Config] is.
	Credentials func(ctx context.Context) (username, password string, err error)

	// TLS, if it is not nil, is used to encrypt the connections to the sentinels. The driver does not modify it. GetTLS
	// replaces it for each connection, as that of [Config] does.
	TLS    *tls.Config
	GetTLS func() *tls.Config
}

// Deployment is a kind of deployment that a [Config] can describe.
type Deployment int

// The kinds of deployments. Each driver reaches a Standalone server.
const (
	Standalone     Deployment = iota // one server, at Addr
	SentinelMaster                   // the master that sentinels name
	RedisCluster                     // the masters of a Redis Cluster
)

// String returns a noun for messages, in the plural.
func (d Deployment) String() string {
	switch d {
	case SentinelMaster:
		return "Sentinel deployments"
	case RedisCluster:
		return "clusters"
	}
	return "standalone servers"
}

// Deployment returns what kind of deployment c describes.
func (c Config) Deployment() Deployment {
	switch {
	case c.Sentinel != nil:
		return SentinelMaster
	case len(c.Cluster) > 0:
		return RedisCluster
	}
	return Standalone
}

// At returns c for the standalone server at addr, for example a master that a sentinel has named, or one of the nodes
// of a cluster. Credentials and TLS are those of c.
func (c Config) At(addr string) Config {
	c.Network, c.Addr, c.Sentinel, c.Cluster = "tcp", addr, nil, nil
	return c
}

// AtSentinel returns a Config for the sentinel at addr, with the credentials and the TLS of c.Sentinel, which must not
// be nil.
func (c Config) AtSentinel(addr string) Config {
	s := c.Sentinel
	c = c.At(addr)
	c.Username, c.Password, c.Credentials, c.DB = s.Username, s.Password, s.Credentials, 0
	c.TLS, c.GetTLS = s.TLS, s.GetTLS
	return c
}

// validate returns an error if c describes no deployment, or more than one.
func (c Config) validate() error {
	switch {
	case c.Sentinel != nil && len(c.Cluster) > 0:
		return errors.New("a deployment is found by sentinels or by nodes of a cluster, not by both")
	case c.Deployment() != Standalone && c.Addr != "":
		return errors.New("an address of one server, beside sentinels or nodes of a cluster: remove one of them")
	case c.Sentinel != nil && (c.Sentinel.Master == "" || len(c.Sentinel.Addrs) == 0):
		return errors.New("the name of the master and the address of a sentinel are needed")
	case len(c.Cluster) > 0 && c.DB != 0:
		return errors.New("a cluster has only database 0")
	case c.GetTLS != nil && c.TLS == nil || c.Sentinel != nil && c.Sentinel.GetTLS != nil && c.Sentinel.TLS == nil:
		return errors.New("there is a GetTLS and no TLS, which drivers that do not know GetTLS need")
	}
	return nil
}

// unable is the error for drivers that do not reach a deployment of kind d.
func unable(name string, reach []Deployment, d Deployment) error {
	what := make([]string, len(reach))
	for i, r := range reach {
		what[i] = r.String()
	}
	can := "no registered driver reaches " + d.String()
	if names := Reaching(d); len(names) > 0 {
		last := len(names) - 1
		can = "use " + strings.TrimPrefix(strings.Join(names[:last], ", ")+" or "+names[last], " or ")
	}
	return unsupported{fmt.Errorf("driver %s reaches %s, not %v: %s", name, strings.Join(what, " and "), d, can)}
}

// unsupported is an error that matches errors.ErrUnsupported.
type unsupported struct{ error }

func (unsupported) Is(target error) bool { return target == errors.ErrUnsupported }

// Reaching returns the names of the registered drivers that reach deployments of kind d, sorted.
func Reaching(d Deployment) []string {
	names := Names()
	registry.Lock()
	defer registry.Unlock()
	return slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(registry.drivers[name].reach, d) })
}
