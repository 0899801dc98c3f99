package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/servers"
	"github.com/golocker/locker/redlock"
)

// Redlock configures the connections to the independent Redis servers of a quorum. All programs that share locks must
// name the same servers. The settings apply to every node that does not override them.
type Redlock struct {
	// Budget bounds how long one operation waits for a majority. Zero: redlock.DefaultBudget.
	Budget Duration `yaml:"budget,omitempty" json:"budget,omitempty"`
	// Guard is the longest TTL and MinHold of all locks, see redlock.Guard. Zero: no restart guard.
	Guard Duration `yaml:"guard,omitempty" json:"guard,omitempty"`
	// Driver, Username, Password, PasswordFile, DB, Timeout and TLS are as in Redis, for each of the nodes.
	Driver       string   `yaml:"driver,omitempty" json:"driver,omitempty"`
	Username     string   `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	Password     Secret   `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string   `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	DB           int      `yaml:"db,omitempty" json:"db,omitempty"`
	Timeout      Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`
	TLS          *TLS     `yaml:"tls,omitempty" json:"tls,omitempty" url:"-"`
	// Nodes are the servers, usually three or five.
	Nodes []Node `yaml:"nodes,omitempty" json:"nodes,omitempty" url:"-"`

	logger      *slog.Logger `yaml:"-" json:"-"` // see Config.logger
	credentials Credentials  `yaml:"-" json:"-"` // see Config.Credentials
}

// Node is one server of a Redlock. An empty field, except Addr, takes its value from the Redlock. For this, Password
// and PasswordFile count as one field, and so do the certificate and the key of TLS.
type Node struct {
	// Name is the node's name in errors and logs. If it is empty, they use its address, or the name of the master.
	Name string `yaml:"name,omitempty" json:"name,omitempty"`
	// Addr is host, host:port or the absolute path of a unix socket. The port is 6379 if not given.
	Addr string `yaml:"addr,omitempty" json:"addr,omitempty"`
	// Sentinel, instead of Addr, finds the node by its sentinels. That is not recommended: a replica that is promoted may
	// have forgotten locks, and then votes again. With a logger, Open logs a warning.
	Sentinel *Sentinel `yaml:"sentinel,omitempty" json:"sentinel,omitempty"`
	// Driver may differ from node to node.
	Driver       string `yaml:"driver,omitempty" json:"driver,omitempty"`
	Username     string `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	Password     Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	TLS          *TLS   `yaml:"tls,omitempty" json:"tls,omitempty" url:"-"`
}

func init() {
	register("redlock", Kind[Redlock]{
		Schemes: []string{"redlocks"},
		Parse:   (*Redlock).parse, Format: (*Redlock).format, Check: (*Redlock).check,
		Open: openRedlock,
	}, func(c *Config) *Redlock { return &c.Redlock })
}

func (r *Redlock) guard() Duration { return r.Guard }

func (r *Redlock) use(logger *slog.Logger, credentials Credentials) {
	r.logger, r.credentials = logger, credentials
}

// maxNodes is the limit of package redlock. A test compares the two.
const maxNodes = 32

func nodePath(i int) string { return fmt.Sprintf("nodes[%d]", i) }

// section returns the settings for all nodes as if they were one server's.
func (r *Redlock) section() Redis {
	return Redis{
		Driver: r.Driver, Username: r.Username, Password: r.Password, PasswordFile: r.PasswordFile,
		DB: r.DB, Timeout: r.Timeout, TLS: r.TLS, logger: r.logger, credentials: r.credentials,
	}
}

// own returns n's own settings.
func (n *Node) own() Redis {
	return Redis{
		Addr: n.Addr, Sentinel: n.Sentinel, Driver: n.Driver, Username: n.Username, Password: n.Password,
		PasswordFile: n.PasswordFile, TLS: n.TLS,
	}
}

// server returns the settings of node i, including those of the section.
func (r *Redlock) server(i int) *Redis {
	s, n := r.section(), &r.Nodes[i]
	s.Addr, s.Sentinel = n.Addr, n.Sentinel
	if n.Driver != "" {
		s.Driver = n.Driver
	}
	if n.Username != "" {
		s.Username = n.Username
	}
	if n.Password != "" || n.PasswordFile != "" {
		s.Password, s.PasswordFile = n.Password, n.PasswordFile
	}
	s.TLS = n.TLS.over(s.TLS)
	return &s
}

// path returns the path of the setting that applies to node i: that of the node, or that of the section.
func (r *Redlock) path(i int, name string) string {
	n := r.Nodes[i]
	if n.TLS == nil {
		n.TLS = new(TLS)
	}
	own := n.Password != "" || n.PasswordFile != "" || strings.HasPrefix(name, "sentinel.")
	switch name {
	case "driver":
		own = n.Driver != ""
	case "password": // a user name is set, but no password
		own = n.Username != ""
	case "tls.ca_file":
		own = n.TLS.CAFile != ""
	case "tls.cert_file, key_file":
		own = n.TLS.CertFile != ""
	}
	if own {
		return nodePath(i) + "." + name
	}
	return name
}

// name returns the name of node i.
func (r *Redlock) name(i int) string {
	if n := &r.Nodes[i]; n.Name != "" {
		return n.Name
	}
	if n := &r.Nodes[i]; n.Sentinel != nil {
		return n.Sentinel.Master
	}
	_, addr, _ := r.server(i).address()
	return addr
}

func (r *Redlock) check(report Report) {
	section := r.section()
	section.checkOwn(report)
	if r.Budget > 0 && time.Duration(r.Budget) < redlock.MinBudget {
		report("budget", fmt.Errorf("%v is below the minimum of %v", r.Budget, redlock.MinBudget))
	}
	switch n := len(r.Nodes); {
	case n == 0:
		report("nodes", errors.New("missing: give the addresses of three or five servers"))
	case n > maxNodes:
		report("nodes", fmt.Errorf("%d nodes, more than the %d allowed", n, maxNodes))
		return
	}
	names, servers, noPassword := map[string]int{}, map[string]int{}, false
	for i := range r.Nodes {
		n, s, at := &r.Nodes[i], r.server(i), nodePath(i)
		own := n.own()
		own.checkOwn(func(setting string, err error) { report(at+"."+setting, err) })
		if s.noPassword() && (n.Username != "" || !noPassword) { // once for the section
			report(r.path(i, "password"), errNoPassword)
			noPassword = noPassword || n.Username == ""
		}
		id, err := r.checkServer(i, s, report)
		twin, same := servers[id]
		if err == nil && same {
			report(at+".addr",
				fmt.Errorf("the same as nodes[%d].addr: give each server once, because it has one vote", twin))
		} else if err == nil {
			servers[id] = i
		}
		name := r.name(i)
		first, again := names[name]
		switch {
		case n.Name != "" && !nodeNameRE.MatchString(n.Name):
			report(at+".name", errors.New("not the name of a node: letters, digits and . _ : / - are allowed"))
		case n.Name == "" && err != nil:
		case again && (n.Name != "" || r.Nodes[first].Name != "" || !same): // otherwise that was reported
			report(at+".name",
				fmt.Errorf("the same as that of nodes[%d]: give another one; without a name, the address is the name, or the "+
					"name of the master", first))
		default:
			names[name] = i
		}
	}
}

// checkServer reports what is wrong with the address or the sentinels of node i, whose settings are s. It returns a
// text that is the same for the same server.
func (r *Redlock) checkServer(i int, s *Redis, report Report) (id string, err error) {
	at := nodePath(i)
	if s.Sentinel != nil {
		s.Sentinel.check(func(setting string, err error) { report(at+"."+setting, err) })
		if r.Nodes[i].Driver == "" { // that of the section, which may suit other nodes
			report("driver", checkDriver(s.Driver, drivers.SentinelMaster))
		}
		if s.Addr != "" {
			report(at+".addr", errors.New("there are sentinels, too, which name the server: remove it"))
		}
		return s.Sentinel.identity(), nil
	}
	network, addr, err := s.address()
	switch {
	case err != nil:
		report(at+".addr", err)
	case network == "unix" && s.TLS != nil:
		report(at+".addr", errSocketTLS)
	}
	return identity(addr), err
}

// Names of nodes are shown in messages, so they must not look like a URL with a password.
var nodeNameRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}$`)

// identity returns the same text for different spellings of an address.
func identity(addr string) string {
	if strings.HasPrefix(addr, "/") {
		return path.Clean(addr)
	}
	host, port, _ := net.SplitHostPort(addr)
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	return net.JoinHostPort(strings.TrimSuffix(strings.ToLower(host), "."), strings.TrimLeft(port, "0"))
}

// openRedlock opens the drivers of all nodes and puts a Client on them, or leaves nothing open.
func openRedlock(ctx context.Context, r *Redlock, prefix string) (*locker.Client, error) {
	d, err := r.deploy(ctx)
	if err != nil {
		return nil, err
	}
	var ds []drivers.Driver
	var names []string
	for _, s := range d.Servers {
		ds, names = append(ds, s.Driver), append(names, s.Name)
	}
	r.warn()
	return redlock.New(ds, redlock.Prefix(prefix), redlock.Names(names...),
		redlock.Timeout(time.Duration(r.Timeout)), redlock.Budget(time.Duration(r.Budget)),
		redlock.Guard(time.Duration(r.Guard)), redlock.Logger(r.logger)), nil
}

// warn logs which nodes are managed by sentinels, if there is a logger.
func (r *Redlock) warn() {
	for i := range r.Nodes {
		if r.logger != nil && r.Nodes[i].Sentinel != nil {
			r.logger.Warn("a node of a Redlock is managed by sentinels: a replica that they promote may have forgotten "+
				"locks, and then votes again, so that two clients can hold a lock: give standalone servers, or a guard",
				"node", r.name(i))
		}
	}
}

// deploy opens the drivers of all nodes, or leaves nothing open.
func (r *Redlock) deploy(ctx context.Context) (*servers.Deployment, error) {
	nodes, problems := r.openServers(ctx)
	d := &servers.Deployment{
		Redlock: true, Servers: nodes, Guard: time.Duration(r.Guard),
		Timeout: r.Timeout.or(drivers.DefaultTimeout), Budget: r.Budget.or(redlock.DefaultBudget),
	}
	if problems != nil {
		_ = d.Close()
		return nil, errors.Join(problems...)
	}
	return d, nil
}

// openServers opens the drivers of all nodes that are configured correctly.
func (r *Redlock) openServers(ctx context.Context) (nodes []servers.Server, problems []error) {
	said := make(map[string]bool) // a bad file of the section is reported once, not for every node
	for i := range r.Nodes {
		s, errs := r.server(i).open(ctx, func(name string) string { return "redlock." + r.path(i, name) })
		for _, err := range errs {
			if !said[err.Error()] {
				problems = append(problems, err)
			}
			said[err.Error()] = true
		}
		if errs == nil {
			s.Name = r.name(i)
			nodes = append(nodes, s)
		}
	}
	return nodes, problems
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

func (r *Redlock) logins() []loginSettings {
	all := []loginSettings{{"redlock", r.Password, r.PasswordFile}}
	for i, n := range r.Nodes {
		all = append(all, loginSettings{"redlock." + nodePath(i), n.Password, n.PasswordFile})
	}
	return all
}
