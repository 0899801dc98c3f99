package config

import (
	"errors"
	"regexp"
	"strconv"
)

// field is one setting, under its names in the three sources. A test checks the paths against Config's tags.
type field struct {
	path  string // in YAML
	param string // in a URL, if it can be set by a parameter
	env   string
	set   func(c *Config, v string) error // its errors say what is wrong, but not the value
}

var fields = []*field{
	{"backend", "", "LOCKER_BACKEND", text(func(c *Config) *string { return &c.Backend })},
	{"prefix", "prefix", "LOCKER_PREFIX", func(c *Config, v string) error { c.Prefix = &v; return nil }},
	{"ttl", "ttl", "LOCKER_TTL", func(c *Config, v string) error { return c.TTL.UnmarshalText([]byte(v)) }},
	{"redis.driver", "driver", "LOCKER_REDIS_DRIVER", text(func(c *Config) *string { return &c.Redis.Driver })},
	{"redis.addr", "", "LOCKER_REDIS_ADDR", text(func(c *Config) *string { return &c.Redis.Addr })},
	{"redis.username", "", "LOCKER_REDIS_USERNAME", text(func(c *Config) *string { return &c.Redis.Username })},
	{"redis.password", "", "LOCKER_REDIS_PASSWORD", func(c *Config, v string) error { return c.Redis.Password.UnmarshalText([]byte(v)) }},
	{"redis.password_file", "password_file", "LOCKER_REDIS_PASSWORD_FILE", text(func(c *Config) *string { return &c.Redis.PasswordFile })},
	{"redis.db", "db", "LOCKER_REDIS_DB", setDB},
	{"redis.timeout", "timeout", "LOCKER_REDIS_TIMEOUT", func(c *Config, v string) error { return c.Redis.Timeout.UnmarshalText([]byte(v)) }},
	{"redis.tls.ca_file", "tls_ca_file", "LOCKER_REDIS_TLS_CA_FILE", text(func(c *Config) *string { return &c.tls().CAFile })},
	{"redis.tls.cert_file", "tls_cert_file", "LOCKER_REDIS_TLS_CERT_FILE", text(func(c *Config) *string { return &c.tls().CertFile })},
	{"redis.tls.key_file", "tls_key_file", "LOCKER_REDIS_TLS_KEY_FILE", text(func(c *Config) *string { return &c.tls().KeyFile })},
	{"redis.tls.server_name", "tls_server_name", "LOCKER_REDIS_TLS_SERVER_NAME", text(func(c *Config) *string { return &c.tls().ServerName })},
	// The last word on TLS. In YAML it is a section, in a URL the scheme.
	{"redis.tls", "", "LOCKER_REDIS_TLS", setTLS},
}

// sections are the paths that have fields below them.
var sections = map[string]func(*Config){
	"redis":     func(*Config) {},
	"redis.tls": func(c *Config) { c.tls() },
}

func fieldAt(path string) *field {
	for _, f := range fields {
		if f.path == path {
			return f
		}
	}
	return nil
}

func text(at func(*Config) *string) func(*Config, string) error {
	return func(c *Config, v string) error {
		if v == "" {
			return errors.New("empty")
		}
		*at(c) = v
		return nil
	}
}

func setDB(c *Config, v string) error {
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil {
		return errors.New("not the number of a database")
	}
	c.Redis.DB = int(n)
	return nil
}

func setTLS(c *Config, v string) error {
	on, err := strconv.ParseBool(v)
	if err != nil {
		return errors.New("neither true nor false")
	}
	if on {
		c.tls()
	} else {
		c.Redis.TLS = nil
	}
	return nil
}

func (c *Config) tls() *TLS {
	if c.Redis.TLS == nil {
		c.Redis.TLS = new(TLS)
	}
	return c.Redis.TLS
}

// nameLike says whether s can be the name of something, and so be repeated in an error. What cannot may be a
// piece of a secret that was not quoted or escaped.
func nameLike(s string) bool { return nameRE.MatchString(s) }

var nameRE = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,40}$`)
