package config

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// field is one setting, under its names in the three sources. A test checks the paths against Config's tags.
type field struct {
	path  string                          // in YAML; below [] it is the same for every element of a list
	param string                          // in a URL, if it can be set by a parameter
	set   func(c *Config, v string) error // its errors say what is wrong, but not the value; below [] it sets the last element
}

var fields = slices.Concat(
	[]*field{
		{"backend", "", text(func(c *Config) *string { return &c.Backend })},
		{"prefix", "prefix", func(c *Config, v string) error { c.Prefix = &v; return nil }},
		{"ttl", "ttl", duration(func(c *Config) *Duration { return &c.TTL })},
		{"redis.addr", "", text(func(c *Config) *string { return &c.Redis.Addr })},
	},
	reach("redis", func(c *Config) conn { return c.Redis.conn() }),
	[]*field{{"redis.fifo", "fifo", func(c *Config, v string) error { return setFIFO(&c.Redis.FIFO, v) }}},
	[]*field{{"redlock.budget", "budget", duration(func(c *Config) *Duration { return &c.Redlock.Budget })}},
	reach("redlock", func(c *Config) conn { return c.Redlock.conn() }),
	[]*field{
		{nodesPath, "", setNodes},
		{nodesPath + "[].name", "", text(func(c *Config) *string { return &c.lastNode().Name })},
		{nodesPath + "[].addr", "", text(func(c *Config) *string { return &c.lastNode().Addr })},
	},
	reach(nodesPath+"[]", func(c *Config) conn { return c.lastNode().conn() }),
	[]*field{
		{"log", "log", text(func(c *Config) *string { return &c.Log })},
		{"tracing", "tracing", setTracing},
		{"retry.for", "retry_for", duration(func(c *Config) *Duration { return &c.retried().For })},
		{"retry.base", "retry_base", duration(func(c *Config) *Duration { return &c.retried().Base })},
		{"retry.most", "retry_most", duration(func(c *Config) *Duration { return &c.retried().Most })},
		{"retry.budget", "retry_budget", setBudget},
		{"retry.on_held", "retry_on_held", setOnHeld},
		{"retry", "retry", setRetry}, // the last word, as that on TLS
	},
)

const nodesPath = "redlock.nodes"

// conn points at those fields of a section that say how to reach a server.
type conn struct {
	driver, username, passwordFile *string
	password                       *Secret
	db                             *int      // nil: not of a single node
	timeout                        *Duration // the same
	tls                            **TLS
}

func (r *Redis) conn() conn {
	return conn{&r.Driver, &r.Username, &r.PasswordFile, &r.Password, &r.DB, &r.Timeout, &r.TLS}
}

func (r *Redlock) conn() conn {
	return conn{&r.Driver, &r.Username, &r.PasswordFile, &r.Password, &r.DB, &r.Timeout, &r.TLS}
}

func (n *Node) conn() conn {
	return conn{driver: &n.Driver, username: &n.Username, passwordFile: &n.PasswordFile, password: &n.Password, tls: &n.TLS}
}

// reach returns the fields of a conn at path.
func reach(path string, at func(*Config) conn) []*field {
	fs := []*field{
		{path + ".driver", "driver", text(func(c *Config) *string { return at(c).driver })},
		{path + ".username", "", text(func(c *Config) *string { return at(c).username })},
		{path + ".password", "", func(c *Config, v string) error { return at(c).password.UnmarshalText([]byte(v)) }},
		{path + ".password_file", "password_file", text(func(c *Config) *string { return at(c).passwordFile })},
	}
	if at(&Config{Redlock: Redlock{Nodes: make([]Node, 1)}}).db != nil {
		fs = append(fs,
			&field{path + ".db", "db", func(c *Config, v string) error { return setDB(at(c).db, v) }},
			&field{path + ".timeout", "timeout", duration(func(c *Config) *Duration { return at(c).timeout })})
	}
	tls := func(c *Config) *TLS { return encrypted(at(c).tls) }
	return append(fs,
		&field{path + ".tls.ca_file", "tls_ca_file", text(func(c *Config) *string { return &tls(c).CAFile })},
		&field{path + ".tls.cert_file", "tls_cert_file", text(func(c *Config) *string { return &tls(c).CertFile })},
		&field{path + ".tls.key_file", "tls_key_file", text(func(c *Config) *string { return &tls(c).KeyFile })},
		&field{path + ".tls.server_name", "tls_server_name", text(func(c *Config) *string { return &tls(c).ServerName })},
		// The last word on TLS. In YAML it is a section, in a URL the scheme.
		&field{path + ".tls", "", func(c *Config, v string) error { return setTLS(at(c).tls, v) }})
}

// sections are the paths that have fields below them.
var sections = map[string]func(*Config){
	"redis":              func(*Config) {},
	"redis.tls":          func(c *Config) { encrypted(&c.Redis.TLS) },
	"redlock":            func(*Config) {},
	"redlock.tls":        func(c *Config) { encrypted(&c.Redlock.TLS) },
	"retry":              func(c *Config) { c.retried() },
	nodesPath + "[].tls": func(c *Config) { encrypted(&c.lastNode().TLS) },
}

// env returns the name of the variable that sets f, or nothing: single nodes are beyond the environment.
func (f *field) env() string {
	if strings.Contains(f.path, "[]") {
		return ""
	}
	return "LOCKER_" + strings.ToUpper(strings.ReplaceAll(f.path, ".", "_"))
}

// of says whether f can be set by a parameter of a URL that is about section, which is empty for memory:.
func (f *field) of(section string) bool {
	switch {
	case f.param == "" || strings.Contains(f.path, "[]"):
		return false
	case !strings.Contains(f.path, "."), strings.HasPrefix(f.path, "retry."):
		return true
	default:
		return section != "" && strings.HasPrefix(f.path, section+".")
	}
}

var indexRE = regexp.MustCompile(`\[[0-9]+\]`)

// fieldAt returns the field with the given path, in which elements of lists may be numbered, or nil.
func fieldAt(path string) *field {
	path = indexRE.ReplaceAllString(path, "[]")
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

func duration(at func(*Config) *Duration) func(*Config, string) error {
	return func(c *Config, v string) error { return at(c).UnmarshalText([]byte(v)) }
}

func setDB(db *int, v string) error {
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil {
		return errors.New("not the number of a database")
	}
	*db = int(n)
	return nil
}

func setFIFO(fifo **bool, v string) error {
	on, err := parseBool(v)
	if err == nil {
		*fifo = &on
	}
	return err
}

func parseBool(v string) (bool, error) {
	on, err := strconv.ParseBool(v)
	if err != nil {
		return false, errors.New("neither true nor false")
	}
	return on, nil
}

func setTLS(t **TLS, v string) error {
	on, err := parseBool(v)
	if err != nil {
		return err
	}
	if on {
		encrypted(t)
	} else {
		*t = nil
	}
	return nil
}

// setNodes replaces the nodes by those of a list of addresses.
func setNodes(c *Config, v string) error {
	c.Redlock.Nodes = nil
	for addr := range strings.SplitSeq(v, ",") {
		c.Redlock.Nodes = append(c.Redlock.Nodes, Node{Addr: strings.TrimSpace(addr)})
	}
	return nil
}

// encrypted makes sure that there is a TLS section.
func encrypted(t **TLS) *TLS {
	if *t == nil {
		*t = new(TLS)
	}
	return *t
}

func (c *Config) lastNode() *Node { return &c.Redlock.Nodes[len(c.Redlock.Nodes)-1] }

// nameLike says whether s can be the name of something, and so be repeated in an error. What cannot may be a
// piece of a secret that was not quoted or escaped.
func nameLike(s string) bool { return nameRE.MatchString(s) }

var nameRE = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,40}$`)
