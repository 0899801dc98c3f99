package drivers

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config describes how to reach one Redis deployment: a standalone server by Addr, the master that sentinels name by
// Sentinel, or a Redis Cluster by Cluster. At most one of the three is set when an [OpenFunc] is called by [Open], and
// an OpenFunc is called only with what its driver was registered for. Without any of them, the client has its own
// default.
type Config struct {
	// Network is "tcp" or "unix". [Open] uses tcp if it is empty.
	Network string

	// Addr is host:port, or the path of the socket for "unix". It is empty with Sentinel or Cluster.
	Addr string

	// Sentinel, if it is not nil, says how to find the server, which is then the master of a deployment that Redis
	// Sentinel manages. The other fields are for the master.
	Sentinel *Sentinel

	// Cluster, if it is not empty, has the addresses of some nodes of a Redis Cluster, as host:port. The client learns
	// the others from them. DB is then 0, and the other fields are for all nodes.
	Cluster []string

	// Username and Password authenticate every connection. If Password is empty, there is no authentication, and
	// Username is ignored. If only Username is empty, the default user is authenticated. If the default user has no
	// password on the server, every Password is accepted.
	Username, Password string

	// Credentials, if it is not nil, is called for every new connection and returns the user and the password for it,
	// with the same rules. [Open] then ignores Username and Password. It is for passwords that change, and for tokens
	// that expire. It must return when ctx ends, which is after Timeout at the latest. If it returns an error, the
	// connection is not made, and the driver's error matches that error and [ErrNotSent]. It is called concurrently.
	// Connections that are open already keep their user.
	Credentials func(ctx context.Context) (username, password string, err error)

	// DB is selected on every connection. 0 is the server's default.
	DB int

	// TLS, if it is not nil, is used to encrypt every connection. The driver does not modify it.
	TLS *tls.Config

	// GetTLS, if it is not nil, is called by [Config.Dial] for every new connection and returns the configuration to use
	// instead of TLS. It is for certificates that are renewed. It is called concurrently, and what it returns is not
	// modified. TLS must be set, too: without it, connections are not encrypted, and a driver that does not use Dial knows
	// only TLS.
	GetTLS func() *tls.Config

	// Timeout bounds dialling, and also each exchange on a connection whose context has no earlier deadline. 0 means
	// [DefaultTimeout].
	Timeout time.Duration
}

// DefaultTimeout is used if [Config.Timeout] is 0.
const DefaultTimeout = 5 * time.Second

// OpenFunc creates a driver and its client. It does not connect: if the server is down, the first Do of the driver
// fails, not Open. It returns an error for a Config that cannot work with any server.
type OpenFunc func(ctx context.Context, cfg Config) (Driver, error)

var registry struct {
	sync.Mutex
	drivers map[string]registered
}

// registered is what [Register] was called with.
type registered struct {
	open  OpenFunc
	reach []Deployment
}

// Register makes a driver available to [Open], and thus to URLs and configuration files. It is usually called in the
// init function of the driver's package. It panics if name is empty or already registered, or if open is nil.
//
// The driver reaches standalone servers, and also the kinds of deployments in reach: [SentinelMaster], [RedisCluster].
// Without these, open is never called with a Config that has Sentinel or Cluster.
func Register(name string, open OpenFunc, reach ...Deployment) {
	registry.Lock()
	defer registry.Unlock()
	if name == "" || open == nil {
		panic("drivers: Register needs a name and an open function")
	}
	if _, dup := registry.drivers[name]; dup {
		panic("drivers: Register called twice for driver " + name)
	}
	if registry.drivers == nil {
		registry.drivers = make(map[string]registered)
	}
	registry.drivers[name] = registered{open, append([]Deployment{Standalone}, reach...)}
}

// Names returns the names of the registered drivers, sorted.
func Names() []string {
	registry.Lock()
	defer registry.Unlock()
	return slices.Sorted(maps.Keys(registry.drivers))
}

// Open creates the driver that is registered under name.
//
// If name is empty, Open uses "goredis" if that is registered, or the only registered driver; drivers that do not reach
// the deployment of cfg do not count. The error for an unknown or ambiguous name lists the registered drivers and says
// how to register more. If the driver does not reach the deployment, the error matches errors.ErrUnsupported and names
// those that do.
func Open(ctx context.Context, name string, cfg Config) (Driver, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	open, err := lookup(name, cfg.Deployment())
	if err != nil {
		return nil, err
	}
	cfg.Network = cmp.Or(cfg.Network, "tcp")
	if cfg.Credentials != nil {
		cfg.Username, cfg.Password = "", ""
	}
	if cfg.Password == "" {
		cfg.Username = "" // clients treat a Username without a Password differently
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	return open(ctx, cfg)
}

// Check returns the error that [Open] would return for a name and a kind of deployment, whatever the address.
func Check(name string, d Deployment) error {
	_, err := lookup(name, d)
	return err
}

func lookup(name string, d Deployment) (OpenFunc, error) {
	howTo := `import _ "github.com/golocker/locker/drivers/all", or just the one you need`
	if name == "valkey" { // drivers/all does not register it
		howTo = `import _ "github.com/golocker/locker/drivers/valkey", which is a module of its own`
	}
	names, able := Names(), Reaching(d)
	switch {
	case len(names) == 0:
		return nil, fmt.Errorf("no Redis driver is registered: %s", howTo)
	case name == "" && len(able) == 0:
		return nil, unsupported{fmt.Errorf("no registered driver reaches %v (registered: %s); to register more: %s",
			d, strings.Join(names, ", "), howTo)}
	case name == "" && slices.Contains(able, "goredis"):
		name = "goredis"
	case name == "" && len(able) == 1:
		name = able[0]
	case name == "":
		return nil, fmt.Errorf("several Redis drivers are registered (%s): name one", strings.Join(able, ", "))
	}
	registry.Lock()
	driver, ok := registry.drivers[name]
	registry.Unlock()
	switch {
	case !ok:
		return nil, fmt.Errorf("unknown Redis driver %q (registered: %s); to register more: %s",
			name, strings.Join(names, ", "), howTo)
	case !slices.Contains(driver.reach, d):
		return nil, unable(name, driver.reach, d)
	}
	return driver.open, nil
}
