package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/single"
)

func init() {
	register("redis", Backend[Redis]{
		Schemes: []string{
			"rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster", "valkey", "valkeys",
			"valkey+sentinel", "valkeys+sentinel", "valkey+cluster", "valkeys+cluster",
		},
		Parse: (*Redis).parse, Format: (*Redis).format, Check: (*Redis).check,
		Open: openRedis, Deployment: deployRedis,
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
	// FIFO switches the queue of waiters on the server on or off, see single.FIFO. Nil means true.
	FIFO *bool `yaml:"fifo,omitempty" json:"fifo,omitempty"`
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
	"fifo": onlyRedis("fifo"), "replicas": onlyRedis("replicas"), "replicas_timeout": onlyRedis("replicas_timeout"),
	"cluster": errors.New(noClusterNode),
}

func onlyRedis(name string) error {
	return fmt.Errorf("only for one Redis: as redis.%s in a file, LOCKER_REDIS_%s, or a parameter of redis://, "+
		"rediss:// or unix://", name, strings.ToUpper(name))
}

func (r *Redis) check(report Report) {
	r.checkOwn(report)
	if r.deployment() == drivers.Standalone {
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
	report("driver", checkDriver(r.Driver, r.deployment()))
	if r.Password != "" && r.PasswordFile != "" {
		report("password_file", errTwoPasswords)
	}
	r.TLS.check(report)
}

// deployment returns what kind of deployment r describes.
func (r *Redis) deployment() drivers.Deployment {
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
func checkDriver(name string, d drivers.Deployment) error {
	known := drivers.Names()
	switch {
	case slices.Contains(known, name):
		return drivers.Check(name, d)
	case name == "":
		return nil // Open says if there is none
	case !nameLike(name), len(known) > 0 && !slices.Contains([]string{"goredis", "redigo", "rueidis", "valkey"}, name):
		return unknown("driver", name, known)
	}
	// The driver may be one of this module that the program does not import. The error says what to import.
	return drivers.Check(name, d)
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
func (r *Redis) open(ctx context.Context, path func(name string) string) (s Server, problems []error) {
	report := func(name string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("config: %s: %w", path(name), err))
		}
	}
	dial, name := r.target(path, report)
	credentials := r.login(path, report)
	encryption := r.TLS.open(dial.Addr, path, r.logger, report)
	if problems != nil {
		return Server{}, problems
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
		return Server{}, problems
	}
	return Server{Name: name, Username: r.Username, Driver: d, Dial: dial}, nil
}

// target returns where the server is, and its name in messages: its address, the name of the master, or the addresses
// of the nodes that are given.
func (r *Redis) target(path func(name string) string, report Report) (c drivers.Config, name string) {
	var err error
	switch r.deployment() {
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
func (r *Redis) server(ctx context.Context) (Server, error) {
	s, problems := r.open(ctx, func(name string) string { return "redis." + name })
	return s, errors.Join(problems...)
}

func (r *Redis) queues() bool { return r.FIFO == nil || *r.FIFO }

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
		single.FIFO(r.queues()), single.Guard(time.Duration(r.Guard)),
		single.WaitReplicas(r.Replicas, time.Duration(r.ReplicasTimeout)), single.Logger(r.logger)), nil
}

var errClusterReplicas = errors.New("WAIT is not supported behind a cluster: remove it")

func deployRedis(ctx context.Context, r *Redis) (*Deployment, error) {
	s, err := r.server(ctx)
	if err != nil {
		return nil, err
	}
	return &Deployment{
		FIFO: r.queues(), Guard: time.Duration(r.Guard), Timeout: r.Timeout.or(drivers.DefaultTimeout),
		Replicas: r.Replicas, Servers: []Server{s},
	}, nil
}
