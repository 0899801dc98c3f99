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

// Config describes how to reach one standalone Redis server. When an [OpenFunc] is called by [Open], Network and Addr
// are set.
type Config struct {
	// Network is "tcp" or "unix". [Open] uses tcp if it is empty.
	Network string

	// Addr is host:port, or the path of the socket for "unix".
	Addr string

	// Username and Password authenticate every connection. If Password is empty, there is no authentication, and
	// Username is ignored. If only Username is empty, the default user is authenticated. If the default user has no
	// password on the server, every Password is accepted.
	Username, Password string

	// DB is selected on every connection. 0 is the server's default.
	DB int

	// TLS, if it is not nil, is used to encrypt every connection. The driver does not modify it.
	TLS *tls.Config

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
	open map[string]OpenFunc
}

// Register makes a driver available to [Open], and thus to URLs and configuration files. It is usually called in the
// init function of the driver's package. It panics if name is empty or already registered, or if open is nil.
func Register(name string, open OpenFunc) {
	registry.Lock()
	defer registry.Unlock()
	if name == "" || open == nil {
		panic("drivers: Register needs a name and an open function")
	}
	if _, dup := registry.open[name]; dup {
		panic("drivers: Register called twice for driver " + name)
	}
	if registry.open == nil {
		registry.open = make(map[string]OpenFunc)
	}
	registry.open[name] = open
}

// Names returns the names of the registered drivers, sorted.
func Names() []string {
	registry.Lock()
	defer registry.Unlock()
	return slices.Sorted(maps.Keys(registry.open))
}

// Open creates the driver that is registered under name.
//
// If name is empty, Open uses "goredis" if that is registered, or the only registered driver. The error for an unknown
// or ambiguous name lists the registered drivers and says how to register more.
func Open(ctx context.Context, name string, cfg Config) (Driver, error) {
	open, err := lookup(name)
	if err != nil {
		return nil, err
	}
	cfg.Network = cmp.Or(cfg.Network, "tcp")
	if cfg.Password == "" {
		cfg.Username = "" // clients treat a Username without a Password differently
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	return open(ctx, cfg)
}

func lookup(name string) (OpenFunc, error) {
	const howTo = `import _ "github.com/golocker/locker/drivers/all", or just the one you need`
	names := Names()
	switch {
	case len(names) == 0:
		return nil, fmt.Errorf("no Redis driver is registered: %s", howTo)
	case name == "" && slices.Contains(names, "goredis"):
		name = "goredis"
	case name == "" && len(names) == 1:
		name = names[0]
	case name == "":
		return nil, fmt.Errorf("several Redis drivers are registered (%s): name one", strings.Join(names, ", "))
	}
	registry.Lock()
	defer registry.Unlock()
	open, ok := registry.open[name]
	if !ok {
		return nil, fmt.Errorf("unknown Redis driver %q (registered: %s); to register more: %s",
			name, strings.Join(names, ", "), howTo)
	}
	return open, nil
}
