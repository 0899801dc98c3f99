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

// Config says how to reach one standalone Redis server. The zero value of a field means what its comment says;
// an [OpenFunc] may rely on Network and Addr being set.
type Config struct {
	// Network is "tcp" or "unix". Empty: tcp, if the driver is made by [Open].
	Network string
	// Addr is host:port, or the path of the socket for "unix".
	Addr string
	// Username and Password authenticate every connection. Empty Password: no authentication, whatever the Username. Empty
	// Username with a Password: the default user. If that has no password on the server, any is accepted.
	Username, Password string
	// DB is selected on every connection. 0 is the server's default.
	DB int
	// TLS, when not nil, encrypts every connection. The driver does not modify it.
	TLS *tls.Config
	// Timeout bounds dialling, and one exchange on a connection when the context does not bound it sooner.
	// Zero: 5 s.
	Timeout time.Duration
}

// DefaultTimeout is what a zero [Config.Timeout] stands for.
const DefaultTimeout = 5 * time.Second

// OpenFunc builds a driver and the client under it. It does not connect: a server that is down is an error of the
// driver's first Do, not of Open. Options that no deployment can satisfy are an error here.
type OpenFunc func(ctx context.Context, cfg Config) (Driver, error)

var registry struct {
	sync.Mutex
	open map[string]OpenFunc
}

// Register makes a driver available to [Open] and so to URLs and configuration files. It is called from the init
// function of the driver's package and panics if name is empty or taken, or open is nil.
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

// Open builds the driver registered under name.
//
// An empty name means "goredis" if that is registered, else the only one that is. An unknown or ambiguous name
// is an error that lists what is registered and how to register more.
func Open(ctx context.Context, name string, cfg Config) (Driver, error) {
	open, err := lookup(name)
	if err != nil {
		return nil, err
	}
	cfg.Network = cmp.Or(cfg.Network, "tcp")
	if cfg.Password == "" {
		cfg.Username = "" // clients differ in what they make of it
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
		return nil, fmt.Errorf("unknown Redis driver %q (registered: %s); to register more: %s", name, strings.Join(names, ", "), howTo)
	}
	return open, nil
}
