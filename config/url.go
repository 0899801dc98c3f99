package config

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Parse reads a URL of the form described at the top of this page. It reports all problems at once, and never repeats
// the URL itself.
func Parse(url string) (*Config, error) {
	b := newBuilder(Config{})
	b.url(url, "URL: ")
	return b.finish()
}

var schemes = []string{"memory", "redis", "rediss", "unix"}

var (
	errNoScheme = errors.New("it begins with none of memory:, redis://, rediss:// and unix://")
	errEscape   = errors.New("an @, : or # where none is expected; in the user name and the password " +
		"write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23 and % as %25, elsewhere @ as %40 and # as %23")
	errPercent  = errors.New("a % that is not followed by two hexadecimal digits is written %25")
	errPassword = errors.New("not among the parameters, please: write redis://user:password@host, or use password_file")
)

// url reads raw into b.
//
// It takes the URL apart by itself. The errors of net/url repeat the URL or pieces of its password; and a password with a
// delimiter in it must be noticed before what follows the delimiter is taken for a name that may be shown.
func (b *builder) url(raw, source string) {
	b.source = source
	raw, query, _ := strings.Cut(raw, "?")
	scheme, rest, ok := strings.Cut(raw, ":")
	rest, slashes := strings.CutPrefix(rest, "//")
	scheme, driver, plus := strings.Cut(scheme, "+")
	scheme = strings.ToLower(scheme)
	switch known := slices.Contains(schemes, scheme); {
	case strings.Contains(query, "@") || strings.Contains(raw+query, "#"):
		b.abandon(source+"address", errEscape)
		return
	case !ok || !known && !slashes:
		b.abandon(source+"scheme", errNoScheme)
		return
	case !known:
		b.report(source+"scheme", unknown("scheme", scheme, schemes))
		if scheme = nearest(scheme, schemes); scheme == "" {
			b.broken = true
			return
		}
	case !slashes && scheme != "memory":
		b.abandon(source+"scheme", errors.New("it is followed by ://"))
		return
	}

	authority, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if strings.Contains(path, "@") {
		b.abandon(source+"address", errEscape)
		return
	}
	b.driver(driver, plus, scheme)
	if scheme == "memory" {
		b.c.Backend = backendMemory
		if authority != "" || strings.Trim(path, "/") != "" {
			b.report(source+"address", errors.New("memory: takes nothing but parameters"))
		}
	} else {
		b.c.Backend = backendRedis
		b.address(scheme, authority, path)
	}
	b.query(scheme, query)
}

// driver takes the driver that was named in the scheme.
func (b *builder) driver(name string, named bool, scheme string) {
	switch {
	case !named:
	case scheme == "memory":
		b.report(b.source+"scheme", errors.New("memory: has no driver"))
	case name == "":
		b.fail("redis.driver", b.source+"scheme", errors.New("there is no driver after the plus sign"))
	default:
		b.set(fieldAt("redis.driver"), name, b.source+"driver")
	}
}

// address takes what stands between the scheme and the parameters.
func (b *builder) address(scheme, authority, path string) {
	host := authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		host = authority[i+1:]
		b.userinfo(authority[:i])
	}
	if scheme == "unix" {
		switch p, err := url.PathUnescape(path); {
		case host != "":
			b.fail("redis.addr", b.source+"addr", errors.New("three slashes and the absolute path of the socket, as in unix:///run/redis.sock"))
		case err != nil:
			b.fail("redis.addr", b.source+"addr", errPercent)
		case strings.Trim(p, "/") == "":
			b.fail("redis.addr", b.source+"addr", errors.New("missing: the absolute path of the socket, as in unix:///run/redis.sock"))
		default:
			b.c.Redis.Addr = p
		}
		return
	}
	if scheme == "rediss" {
		b.c.tls()
	}
	if strings.HasPrefix(host, "[") {
		host = strings.Replace(host, "%25", "%", 1) // of a zone
	}
	hp, err := hostPort(host)
	if err != nil {
		b.fail("redis.addr", b.source+"addr", err)
	}
	b.c.Redis.Addr = hp
	if db := strings.TrimPrefix(path, "/"); db != "" {
		b.set(fieldAt("redis.db"), db, b.source+"db")
	}
}

// userinfo takes what stands before the @.
func (b *builder) userinfo(s string) {
	user, password, colon := strings.Cut(s, ":")
	if strings.Contains(s, "@") || strings.Contains(password, ":") {
		b.fail("redis.password", b.source+"password", errEscape)
		return
	}
	for _, part := range []struct{ name, path, value string }{
		{"username", "redis.username", user},
		{"password", "redis.password", password},
	} {
		v, err := url.PathUnescape(part.value)
		switch {
		case err != nil:
			b.fail(part.path, b.source+part.name, errPercent)
		case v != "" || part.name == "password" && colon:
			b.set(fieldAt(part.path), v, b.source+part.name)
		}
	}
}

// query takes the parameters.
func (b *builder) query(scheme, query string) {
	known := params(scheme)
	seen := make(map[string]bool)
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		where := b.source + name
		v, err := url.QueryUnescape(value)
		switch {
		case !ok: // the name is not shown: it may be what follows the & in a password
			b.report(b.source+"parameters", errors.New("one of them has no value; the form is name=value"))
		case slices.Contains([]string{"password", "pass", "passwd", "pwd", "auth"}, strings.ToLower(name)):
			b.report(b.source+"password", errPassword)
		case !slices.Contains(known, name):
			if strings.HasPrefix(name, "tls_") && slices.Contains(params("rediss"), name) {
				b.report(where, errors.New("only with rediss://"))
			} else {
				b.report(b.source+"parameters", unknown("parameter", name, known))
			}
		case seen[name]:
			b.report(where, errors.New("given more than once"))
		case err != nil:
			b.report(where, errPercent)
		default:
			b.param(name, v, where)
		}
		seen[name] = true
	}
}

// param sets one parameter. Two may have been set already by other parts of the URL; they must agree.
func (b *builder) param(name, v, where string) {
	i := slices.IndexFunc(fields, func(f *field) bool { return f.param == name })
	f, before := fields[i], b.c.Redis
	_, again := b.origin[f.path]
	b.set(f, v, where)
	if again && !b.failed[f.path] && (before.Driver != b.c.Redis.Driver || before.DB != b.c.Redis.DB) {
		b.fail(f.path, where, errors.New("given twice, and differently: once as a parameter and once before"))
	}
}

// params returns the names of the parameters that scheme has.
func params(scheme string) []string {
	var names []string
	for _, f := range fields {
		switch {
		case f.param == "":
		case scheme == "memory" && strings.HasPrefix(f.path, "redis."):
		case scheme != "rediss" && strings.HasPrefix(f.path, "redis.tls."):
		default:
			names = append(names, f.param)
		}
	}
	return names
}

// String returns c as a URL, with the mask in place of the password. If there is none, Parse gives c back.
func (c Config) String() string {
	q := make(url.Values)
	add := func(name, v string) {
		if v != "" {
			q.Set(name, v)
		}
	}
	if c.Prefix != nil {
		q.Set("prefix", *c.Prefix)
	}
	if c.TTL != 0 {
		add("ttl", c.TTL.String())
	}
	s := c.Backend + ":"
	if r := c.Redis; c.Backend == backendRedis {
		s = r.url(add)
		add("password_file", r.PasswordFile)
		if r.Timeout != 0 {
			add("timeout", r.Timeout.String())
		}
		if t := r.TLS; t != nil {
			add("tls_ca_file", t.CAFile)
			add("tls_cert_file", t.CertFile)
			add("tls_key_file", t.KeyFile)
			add("tls_server_name", t.ServerName)
		}
	}
	if len(q) > 0 {
		s += "?" + q.Encode()
	}
	return s
}

// url returns the part up to the parameters; what does not fit there goes to param.
func (r *Redis) url(param func(name, v string)) string {
	network, addr, err := r.address()
	if err != nil {
		network, addr = "tcp", "" // not shown: it may be anything
	}
	s, path, db := "redis", "", ""
	if r.DB != 0 {
		db = strconv.Itoa(r.DB)
	}
	switch {
	case network == "unix":
		s, addr, path = "unix", "", strings.ReplaceAll((&url.URL{Path: addr}).EscapedPath(), "@", "%40")
		param("db", db)
	case db != "":
		path = "/" + db
	}
	if r.TLS != nil && network == "tcp" {
		s = "rediss"
	}
	if r.Driver != "" {
		s += "+" + r.Driver
	}
	s += "://"
	if r.Username != "" || r.Password != "" {
		s += url.User(r.Username).String()
		if r.Password != "" {
			s += ":" + r.Password.String()
		}
		s += "@"
	}
	return s + strings.ReplaceAll(addr, "%", "%25") + path
}
