package drivers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

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
	reach []Topology
}

// Register makes a driver available to [Open], and thus to URLs and configuration files. It is usually called in the
// init function of the driver's package. It panics if name is empty or already registered, or if open is nil.
//
// The driver reaches standalone servers, and also the kinds of deployments in reach: [SentinelMaster], [RedisCluster].
// Without these, open is never called with a Config that has Sentinel or Cluster.
func Register(name string, open OpenFunc, reach ...Topology) {
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
	registry.drivers[name] = registered{open, append([]Topology{Standalone}, reach...)}
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
	open, err := lookup(name, cfg.Topology())
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
func Check(name string, t Topology) error {
	_, err := lookup(name, t)
	return err
}

func lookup(name string, t Topology) (OpenFunc, error) {
	howTo := `import _ "github.com/golocker/locker/drivers/all", or just the one you need`
	if name == "valkey" { // drivers/all does not register it
		howTo = `import _ "github.com/golocker/locker/drivers/valkeydriver", which is a module of its own`
	}
	names, able := Names(), Reaching(t)
	switch {
	case len(names) == 0:
		return nil, fmt.Errorf("no Redis driver is registered: %s", howTo)
	case name == "" && len(able) == 0:
		return nil, unsupported{fmt.Errorf("no registered driver reaches %v (registered: %s); to register more: %s",
			t, strings.Join(names, ", "), howTo)}
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
	case !slices.Contains(driver.reach, t):
		return nil, unable(name, driver.reach, t)
	}
	return driver.open, nil
}

// unable is the error for drivers that do not reach a deployment of kind t.
func unable(name string, reach []Topology, t Topology) error {
	what := make([]string, len(reach))
	for i, r := range reach {
		what[i] = r.String()
	}
	can := "no registered driver reaches " + t.String()
	if names := Reaching(t); len(names) > 0 {
		last := len(names) - 1
		can = "use " + strings.TrimPrefix(strings.Join(names[:last], ", ")+" or "+names[last], " or ")
	}
	return unsupported{fmt.Errorf("driver %s reaches %s, not %v: %s", name, strings.Join(what, " and "), t, can)}
}

// unsupported is an error that matches errors.ErrUnsupported.
type unsupported struct{ error }

func (unsupported) Is(target error) bool { return target == errors.ErrUnsupported }

// Reaching returns the names of the registered drivers that reach deployments of kind t, sorted.
func Reaching(t Topology) []string {
	names := Names()
	registry.Lock()
	defer registry.Unlock()
	return slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(registry.drivers[name].reach, t) })
}
