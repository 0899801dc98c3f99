package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/internal/redis/servers"
	"github.com/golocker/locker/single"
)

func init() {
	register("redis", Kind[Redis]{
		Schemes: []string{
			"rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster", "valkey", "valkeys",
			"valkey+sentinel", "valkeys+sentinel", "valkey+cluster", "valkeys+cluster",
		},
		Parse: (*Redis).parse, Format: (*Redis).format, Check: (*Redis).check,
		Open: openRedis,
	}, func(c *Config) *Redis { return &c.Redis })
}

// Redis configures the connection to one Redis server, to the master that sentinels name, or to a Redis Cluster. One of
// Addr, Sentinel and Cluster must be given, and no more.
type Redis struct {
	// Driver is the name under which a driver is registered. Empty: as drivers.Open chooses.
	Driver string `yaml:"driver,omitempty" json:"driver,omitempty"`
	// Addr is host, host:port or the absolute path of a unix socket. The port is 6379 if not given.
	Addr string `yaml:"addr,omitempty" json:"addr,omitempty" url:"-"`
	// Sentinel finds the server by its sentinels.
	Sentinel *Sentinel `yaml:"sentinel,omitempty" json:"sentinel,omitempty" url:"-"`
	// Cluster finds the servers of a Redis Cluster.
	Cluster *Cluster `yaml:"cluster,omitempty" json:"cluster,omitempty" url:"-"`
	// Username is the ACL user. Empty: the default one.
	Username string `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	// Password, or the content of PasswordFile without its trailing newline, authenticates. The file is read by Open, and
	// again for every new connection, so that it can be replaced while the program runs. While it cannot be read then, or
	// is empty, connections use what it contained before.
	Password     Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	// DB is the number of the database.
	DB int `yaml:"db,omitempty" json:"db,omitempty"`
	// Timeout bounds dialling and one exchange. Zero: 5 s.
	Timeout Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`
	// Guard is the longest TTL and MinHold of all locks, see single.Guard. Zero: no restart guard.
	Guard Duration `yaml:"guard,omitempty" json:"guard,omitempty"`
	// Replicas is how many replicas have to confirm a lock, and ReplicasTimeout how long to wait for them, see
	// single.WaitReplicas. Zero: none, and single.DefaultReplicasTimeout.
	Replicas        int      `yaml:"replicas,omitempty" json:"replicas,omitempty"`
	ReplicasTimeout Duration `yaml:"replicas_timeout,omitempty" json:"replicas_timeout,omitempty"`
	// TLS encrypts the connections. Nil: plain.
	TLS *TLS `yaml:"tls,omitempty" json:"tls,omitempty" url:"-"`

	logger      *slog.Logger `yaml:"-" json:"-"` // see Config.logger
	credentials Credentials  `yaml:"-" json:"-"` // see Config.Credentials
}

var (
	errTwoPasswords = errors.New("there is a password, too: remove one of them")
	errNoPassword   = errors.New("missing, although there is a username: give it, or a password_file")
	errSocketTLS    = errors.New("Redis does not speak TLS on a unix socket: give host:port, or switch TLS off")
	errNoReplicas   = errors.New("has no effect without replicas: give replicas, too")
	errDB           = errors.New("not a whole number of 0 or more")
)

// misplaced explains settings that exist only for other backends.
var misplaced = map[string]error{
	"replicas": onlyRedis("replicas"), "replicas_timeout": onlyRedis("replicas_timeout"),
	"cluster": errors.New(noClusterNode),
}

func onlyRedis(name string) error {
	return fmt.Errorf("only for one Redis: as redis.%s in a file, LOCKER_REDIS_%s, or a parameter of redis://, "+
		"rediss:// or unix://", name, strings.ToUpper(name))
}

func (r *Redis) check(report Report) {
	r.checkOwn(report)
	if r.topology() == drivers.Standalone {
		_, _, err := r.address()
		if errors.Is(err, errList) {
			err = fmt.Errorf("%w: write redlock://h1,h2,h3 for several independent servers, redis+sentinel://h1,h2/name for "+
				"sentinels, redis+cluster://h1,h2 for a cluster", err)
		}
		report("addr", err)
	} else if r.Addr != "" {
		report("addr", errors.New("there are sentinels or nodes of a cluster, too, which name the server: remove it"))
	}
	r.Sentinel.check(report)
	r.Cluster.check(r, report)
	if r.noPassword() {
		report("password", errNoPassword)
	}
	if r.TLS != nil && strings.HasPrefix(r.Addr, "/") {
		report("tls", errSocketTLS)
	}
	if r.Replicas == 0 && r.ReplicasTimeout > 0 {
		report("replicas_timeout", errNoReplicas)
	}
}

func (r *Redis) noPassword() bool {
	return r.Username != "" && r.Password == "" && r.PasswordFile == ""
}

// checkOwn reports the mistakes that do not depend on other settings.
func (r *Redis) checkOwn(report Report) {
	report("driver", checkDriver(r.Driver, r.topology()))
	if r.Password != "" && r.PasswordFile != "" {
		report("password_file", errTwoPasswords)
	}
	r.TLS.check(report)
}

// topology returns what kind of deployment r describes.
func (r *Redis) topology() drivers.Topology {
	switch {
	case r.Sentinel != nil:
		return drivers.SentinelMaster
	case r.Cluster != nil:
		return drivers.RedisCluster
	}
	return drivers.Standalone
}

// checkDriver returns an error for an unknown driver, with the registered names, or for one that does not reach the
// deployment.
func checkDriver(name string, t drivers.Topology) error {
	known := drivers.Names()
	switch {
	case slices.Contains(known, name):
		return drivers.Check(name, t)
	case name == "":
		return nil // Open says if there is none
	case !nameLike(name), len(known) > 0 && !slices.Contains([]string{"goredis", "redigo", "rueidis", "valkey"}, name):
		return unknown("driver", name, known)
	}
	// The driver may be one of this module that the program does not import. The error says what to import.
	return drivers.Check(name, t)
}

// address returns what to dial: "unix" and a path, or "tcp" and host:port. Its errors do not repeat the address: it may
// be a URL with a password that was put in the wrong place.
func (r *Redis) address() (network, addr string, err error) {
	if strings.HasPrefix(r.Addr, "/") {
		if strings.HasSuffix(r.Addr, "/") || strings.ContainsRune(r.Addr, 0) {
			return "", "", errors.New("not the path of a socket: it ends with a slash, or has a zero byte")
		}
		return "unix", r.Addr, nil
	}
	addr, err = hostPort(r.Addr, redisPort)
	return "tcp", addr, err
}

// open reads the files that r names and opens its driver. The server's name is its address. path returns the path of a
// setting, for errors.
func (r *Redis) open(ctx context.Context, path func(name string) string) (s servers.Server, problems []error) {
	report := func(name string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("config: %s: %w", path(name), err))
		}
	}
	dial, name := r.target(path, report)
	credentials := r.login(path, report)
	encryption := r.TLS.open(dial.Addr, path, r.logger, report)
	if problems != nil {
		return servers.Server{}, problems
	}
	dial.Timeout = time.Duration(r.Timeout)
	if encryption != nil {
		dial.TLS, dial.GetTLS = encryption.config(), encryption.config
		if s := dial.Sentinel; s != nil {
			s.TLS, s.GetTLS = dial.TLS, dial.GetTLS
		}
	}
	c := dial
	c.Username, c.Password, c.Credentials, c.DB = r.Username, r.Password.Reveal(), credentials, r.DB
	if r.Replicas > 0 { // the client must not give up while the server waits for them
		c.Timeout = r.Timeout.or(drivers.DefaultTimeout) + r.ReplicasTimeout.or(single.DefaultReplicasTimeout)
	}
	d, err := drivers.Open(ctx, r.Driver, c)
	report("driver", err)
	if err != nil {
		return servers.Server{}, problems
	}
	return servers.Server{Name: name, Username: r.Username, Driver: d, Dial: dial}, nil
}

// target returns where the server is, and its name in messages: its address, the name of the master, or the addresses
// of the nodes that are given.
func (r *Redis) target(path func(name string) string, report Report) (c drivers.Config, name string) {
	var err error
	switch r.topology() {
	case drivers.SentinelMaster:
		c.Sentinel = r.Sentinel.config(path, r.logger, report)
		return c, r.Sentinel.Master
	case drivers.RedisCluster:
		c.Cluster, err = r.Cluster.Addrs.full(redisPort)
		report("cluster.addrs", err)
		return c, strings.Join(c.Cluster, ",")
	}
	c.Network, c.Addr, err = r.address()
	report("addr", err)
	return c, c.Addr
}

// server is open for the one server of a Config.
func (r *Redis) server(ctx context.Context) (servers.Server, error) {
	s, problems := r.open(ctx, func(name string) string { return "redis." + name })
	return s, errors.Join(problems...)
}

func (r *Redis) guard() Duration { return r.Guard }

func (r *Redis) use(logger *slog.Logger, credentials Credentials) {
	r.logger, r.credentials = logger, credentials
}

func openRedis(ctx context.Context, r *Redis, prefix string) (*locker.Client, error) {
	s, err := r.server(ctx)
	if err != nil {
		return nil, err
	}
	// A driver from another module may be one of a cluster without having registered for clusters.
	if _, cluster := s.Driver.(drivers.Cluster); cluster && r.Replicas > 0 {
		return nil, errors.Join(fmt.Errorf("config: redis.replicas: %w", errClusterReplicas), s.Driver.Close())
	}
	return single.New(s.Driver, single.Prefix(prefix), single.Name(s.Name), single.Timeout(time.Duration(r.Timeout)),
		single.Guard(time.Duration(r.Guard)), single.WaitReplicas(r.Replicas, time.Duration(r.ReplicasTimeout)),
		single.Logger(r.logger)), nil
}

var errClusterReplicas = errors.New("WAIT is not supported behind a cluster: remove it")

func (r *Redis) deploy(ctx context.Context) (*servers.Deployment, error) {
	s, err := r.server(ctx)
	if err != nil {
		return nil, err
	}
	return &servers.Deployment{
		Guard: time.Duration(r.Guard), Timeout: r.Timeout.or(drivers.DefaultTimeout),
		Replicas: r.Replicas, Servers: []servers.Server{s},
	}, nil
}

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
	switch r.topology() {
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

// loginSettings are the settings of a password, in the section of the given path.
type loginSettings struct {
	path     string
	password Secret
	file     string
}

func (r *Redis) logins() []loginSettings {
	return []loginSettings{{"redis", r.Password, r.PasswordFile}}
}

// login reads the password file, if there is one, and returns the function that reads it again for each connection, or
// the one of Config.Credentials. It returns nil if the password does not change.
func (r *Redis) login(path func(name string) string, report Report) Credentials {
	if r.credentials != nil || r.PasswordFile == "" {
		return r.credentials
	}
	const name = "password_file"
	file := &reread[string]{setting: path(name), logger: r.logger,
		read: func() (string, error) { return readPassword(r.PasswordFile) }}
	report(name, file.begin())
	return func(context.Context) (string, string, error) { return r.Username, file.get(), nil }
}

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

// Sentinel says how to find the Redis server that is the master of a deployment which Redis Sentinel manages. The other
// settings of [Redis], such as user and TLS, are for the master. TLS is also used for the sentinels.
type Sentinel struct {
	// Master is the name under which the sentinels know the deployment.
	Master string `yaml:"master,omitempty" json:"master,omitempty" url:"-"`
	// Addrs are the addresses of the sentinels, usually three. The port is 26379 if not given.
	Addrs Addrs `yaml:"addrs,omitempty" json:"addrs,omitempty" url:"-"`
	// Username, Password and PasswordFile authenticate the connections to the sentinels, as those of Redis do for the
	// server. Empty: the sentinels need no password.
	Username     string `yaml:"username,omitempty" json:"username,omitempty"`
	Password     Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string `yaml:"password_file,omitempty" json:"password_file,omitempty"`
}

// masterRE is what sentinels accept as a name.
var masterRE = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func (s *Sentinel) check(report Report) {
	if s == nil {
		return
	}
	switch {
	case s.Master == "":
		report("sentinel.master", errors.New("missing: the name that the sentinels give the master, as in "+
			"redis+sentinel://host:26379/mymaster"))
	case !masterRE.MatchString(s.Master):
		report("sentinel.master", errors.New("not a name that a sentinel accepts: letters, digits and . _ - only"))
	}
	_, err := s.Addrs.full(sentinelPort)
	report("sentinel.addrs", err)
	if s.Password != "" && s.PasswordFile != "" {
		report("sentinel.password_file", errTwoPasswords)
	}
	if s.Username != "" && s.Password == "" && s.PasswordFile == "" {
		report("sentinel.password", errNoPassword)
	}
}

// config reads the password and returns what a driver needs. path and report are those of the section around s.
func (s *Sentinel) config(path func(name string) string, logger *slog.Logger, report Report) *drivers.Sentinel {
	const section = "sentinel."
	addrs, err := s.Addrs.full(sentinelPort)
	report(section+"addrs", err)
	user := Redis{Username: s.Username, PasswordFile: s.PasswordFile, logger: logger}
	return &drivers.Sentinel{
		Master: s.Master, Addrs: addrs, Username: s.Username, Password: s.Password.Reveal(),
		Credentials: user.login(func(name string) string { return path(section + name) },
			func(setting string, err error) { report(section+setting, err) }),
	}
}

// parse takes the sentinels, the name of the master and the database from a URL.
func (s *Sentinel) parse(at Location, db *int, report Report) {
	s.Addrs = parseAddrs(at.Host, sentinelPort)
	master, rest, _ := strings.Cut(strings.TrimPrefix(at.Path, "/"), "/")
	s.Master = master
	report("db", setDB(db, rest))
}

func (s *Sentinel) format(db *int) Location {
	at := Location{Scheme: "redis+sentinel", Host: s.Addrs.format(sentinelPort)}
	if masterRE.MatchString(s.Master) {
		at.Path = "/" + s.Master
	}
	at.Path += pathDB(db)
	return at
}

// identity returns a text that is the same for the same deployment.
func (s *Sentinel) identity() string {
	return "sentinel:" + s.Addrs.format(sentinelPort) + "/" + s.Master
}
