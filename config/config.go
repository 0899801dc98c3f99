package config

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// Config says which locks a program uses. It is plain data: fill it in, or get it from [Parse] or [Load]. The zero value
// of every field but Backend stands for a default.
type Config struct {
	// Backend is "memory", "redis" or "redlock".
	Backend string `yaml:"backend" json:"backend"`
	// Prefix is put before every key. Nil: "lock:". It may be empty, see single.Prefix.
	Prefix *string `yaml:"prefix,omitempty" json:"prefix,omitempty"`
	// TTL is the lease time of calls that do not choose one. Zero: the program's own default, or locker.DefaultTTL.
	TTL Duration `yaml:"ttl,omitempty" json:"ttl,omitempty"`
	// Log is the level from which on locks are logged, to slog.Default: "debug", "info" or "warn". See package
	// middleware/logging. Empty: they are not.
	Log string `yaml:"log,omitempty" json:"log,omitempty"`
	// Tracing traces and measures locks, by the middleware that [RegisterTracing] was given. False: they are not.
	Tracing bool `yaml:"tracing,omitempty" json:"tracing,omitempty"`
	// Retry says how operations are retried that failed because of the store. See package middleware/retry. Nil: they are not.
	Retry *Retry `yaml:"retry,omitempty" json:"retry,omitempty"`
	// Redis is used if Backend is "redis".
	Redis Redis `yaml:"redis,omitempty" json:"redis,omitzero"`
	// Redlock is used if Backend is "redlock".
	Redlock Redlock `yaml:"redlock,omitempty" json:"redlock,omitzero"`
}

// Redis says how to reach one Redis server.
type Redis struct {
	// Driver is the name under which a driver is registered. Empty: as drivers.Open chooses.
	Driver string `yaml:"driver,omitempty" json:"driver,omitempty"`
	// Addr is host, host:port or the absolute path of a unix socket. The port is 6379 if not given.
	Addr string `yaml:"addr,omitempty" json:"addr,omitempty"`
	// Username is the ACL user. Empty: the default one.
	Username string `yaml:"username,omitempty" json:"username,omitempty"`
	// Password, or the content of PasswordFile without its trailing newline, authenticates. The file is read by Open.
	Password     Secret `yaml:"password,omitempty" json:"password,omitempty"`
	PasswordFile string `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	// DB is the number of the database.
	DB int `yaml:"db,omitempty" json:"db,omitempty"`
	// Timeout bounds dialling and one exchange. Zero: 5 s.
	Timeout Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`
	// FIFO says whether those who wait for a lock queue up on the server, see single.FIFO. Nil: true.
	FIFO *bool `yaml:"fifo,omitempty" json:"fifo,omitempty"`
	// TLS encrypts the connections. Nil: plain.
	TLS *TLS `yaml:"tls,omitempty" json:"tls,omitempty"`
}

// TLS says whom to trust. The zero value trusts the system's roots and checks the name in Addr.
type TLS struct {
	// CAFile has the certificates to trust instead of the system's, as PEM.
	CAFile string `yaml:"ca_file,omitempty" json:"ca_file,omitempty"`
	// CertFile and KeyFile are the client's own certificate and key, as PEM.
	CertFile string `yaml:"cert_file,omitempty" json:"cert_file,omitempty"`
	KeyFile  string `yaml:"key_file,omitempty" json:"key_file,omitempty"`
	// ServerName is checked in the server's certificate instead of the host in Addr.
	ServerName string `yaml:"server_name,omitempty" json:"server_name,omitempty"`
}

const (
	backendMemory  = "memory"
	backendRedis   = "redis"
	backendRedlock = "redlock"
)

var backends = []string{backendMemory, backendRedis, backendRedlock}

// Validate reports everything that would keep Open from succeeding, short of reading files: one line for each problem,
// with the path of the field as it is written in YAML.
func (c *Config) Validate() error {
	b := newBuilder(*c)
	_, err := b.finish()
	return err
}

// problem is something wrong with the field at path.
type problem struct {
	path string
	err  error
}

// check returns what is wrong with c. A section that is not used is not looked at.
func (c *Config) check() []problem {
	var ps []problem
	add := func(path string, err error) {
		if err != nil {
			ps = append(ps, problem{path, err})
		}
	}
	switch ttl := time.Duration(c.TTL); {
	case ttl == 0:
	case ttl < locker.MinTTL:
		add("ttl", fmt.Errorf("%v is below the minimum of %v", ttl, locker.MinTTL))
	case ttl > locker.MaxTTL:
		add("ttl", fmt.Errorf("%v is above the maximum of %v", ttl, locker.MaxTTL))
	}
	switch {
	case c.Backend == "":
		add("backend", errors.New("missing: memory, redis or redlock"))
	case !slices.Contains(backends, c.Backend):
		add("backend", unknown("backend", c.Backend, backends))
	case c.Backend == backendRedis:
		c.Redis.check(add)
	case c.Backend == backendRedlock:
		c.Redlock.check(add)
	}
	if _, ok := levels[c.Log]; c.Log != "" && !ok {
		add("log", unknown("level", c.Log, levelNames))
	}
	if c.Tracing && newTracing == nil {
		add("tracing", errNoTracing)
	}
	c.Retry.check(add)
	return ps
}

var (
	errNoPassword = errors.New("missing, although there is a username")
	errSocketTLS  = errors.New("Redis does not speak TLS on a unix socket")
)

func (r *Redis) check(add func(path string, err error)) {
	r.checkOwn("redis", add)
	_, _, err := r.address()
	if errors.Is(err, errList) {
		err = fmt.Errorf("%w: several independent servers are for redlock://h1,h2,h3, or backend: redlock", err)
	}
	add("redis.addr", err)
	if r.noPassword() {
		add("redis.password", errNoPassword)
	}
	if r.TLS != nil && strings.HasPrefix(r.Addr, "/") {
		add("redis.tls", errSocketTLS)
	}
}

func (r *Redis) noPassword() bool {
	return r.Username != "" && r.Password == "" && r.PasswordFile == ""
}

// checkOwn looks at what is wrong in itself, wherever else the rest may come from. path is that of the section.
func (r *Redis) checkOwn(path string, add func(path string, err error)) {
	add(path+".driver", checkDriver(r.Driver))
	if r.Password != "" && r.PasswordFile != "" {
		add(path+".password_file", errors.New("there is a password, too: one of them must go"))
	}
	if r.DB < 0 {
		add(path+".db", errors.New("negative"))
	}
	if r.Timeout < 0 {
		add(path+".timeout", errors.New("negative"))
	}
	if r.TLS != nil {
		switch {
		case r.TLS.CertFile == "" && r.TLS.KeyFile != "":
			add(path+".tls.cert_file", errors.New("missing, although there is a key_file"))
		case r.TLS.CertFile != "" && r.TLS.KeyFile == "":
			add(path+".tls.key_file", errors.New("missing, although there is a cert_file"))
		}
	}
}

// checkDriver says what is wrong with the name of a driver, and what is registered.
func checkDriver(name string) error {
	known := drivers.Names()
	switch {
	case name == "" || slices.Contains(known, name):
		return nil
	case !nameLike(name):
		return errors.New("not the name of a driver")
	case len(known) > 0 && !slices.Contains([]string{"goredis", "redigo", "rueidis"}, name):
		return unknown("driver", name, known)
	}
	// A driver that this module has, and the program does not import.
	_, err := drivers.Open(context.Background(), name, drivers.Config{}) // opens nothing: there is no such driver
	return err
}

func (c *Config) clone() Config {
	d := *c
	d.Prefix = cloneOf(c.Prefix)
	d.Retry = cloneOf(c.Retry)
	d.Redis.FIFO = cloneOf(c.Redis.FIFO)
	d.Redis.TLS = c.Redis.TLS.clone()
	d.Redlock = c.Redlock.clone()
	return d
}

func (t *TLS) clone() *TLS { return cloneOf(t) }

func cloneOf[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// Duration is a time.Duration that is written with its unit, as in "10s" or "1m30s", in YAML and JSON. A bare number is
// refused, because half the world means seconds by it and the other half nanoseconds.
type Duration time.Duration

// String is that of time.Duration.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler, which YAML and JSON use.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler, which YAML uses.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	switch {
	case bareNumber.Match(text):
		return errors.New("a number without a unit: write 10s or 500ms")
	case err != nil:
		return errors.New("not a duration such as 10s or 500ms")
	case v <= 0:
		return errors.New("must be more than 0: leave it out for the default")
	}
	*d = Duration(v)
	return nil
}

var bareNumber = regexp.MustCompile(`^[-+]?[0-9][0-9_.]*$`)

// UnmarshalJSON implements json.Unmarshaler, so that a bare number is explained, too.
func (d *Duration) UnmarshalJSON(data []byte) error {
	return d.UnmarshalText([]byte(strings.Trim(string(data), `"`)))
}
