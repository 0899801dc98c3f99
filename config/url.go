package config

import (
	"errors"
	"fmt"
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

// schemes are what a URL may begin with, and the section that each is about.
var schemes = []struct{ name, section string }{
	{"memory", ""}, {"redis", "redis"}, {"rediss", "redis"}, {"unix", "redis"}, {"redlock", "redlock"}, {"redlocks", "redlock"},
}

// secure are the schemes with TLS, by those without.
var secure = map[string]string{"redis": "rediss", "redlock": "redlocks"}

// instead says what to write for schemes that other programs have.
var instead = map[string]string{
	"redis-sentinel":  noSentinel,
	"rediss-sentinel": noSentinel,
	"redis-cluster":   noCluster,
	"rediss-cluster":  noCluster,
	"redis-socket":    "write unix:///path/of.sock",
	"redis-unix":      "write unix:///path/of.sock",
	"valkey":          "write redis://",
	"valkeys":         "write rediss://",
	"tcp":             "write redis://",
	"tls":             "write rediss://",
}

const (
	noSentinel = "give the master's own address, redis://host:6379; " +
		"or, in a program, hand a client that asks the sentinels to single.New"
	noCluster = "a URL reaches one server; for a cluster, hand a client that knows it to single.New, in a program"
)

func schemeNames() []string {
	var names []string
	for _, s := range schemes {
		names = append(names, s.name)
	}
	return names
}

var (
	errNoScheme = errors.New("missing: write redis://host:6379, for example " +
		"(known: memory:, redis://, rediss://, unix://, redlock://, redlocks://)")
	errEscape = errors.New("an @, : or # where none is expected; in the user name and the password " +
		"write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23 and % as %25, elsewhere @ as %40 and # as %23")
	errPercent  = errors.New("a % that is not followed by two hexadecimal digits is written %25")
	errEmpty    = errors.New("empty: is " + envURL + " set?")
	errQuoted   = errors.New("in quotes, which are no part of it: remove them (docker --env-file, for one, keeps quotes)")
	errOnce     = errors.New("user and password are written once, before the first host, and hold for all; in them, write , as %2C")
	errPassword = errors.New("not among the parameters, please: write redis://user:password@host, or use password_file")
)

// url reads raw into b.
//
// It takes the URL apart by itself. The errors of net/url repeat the URL or pieces of its password; and a password with a
// delimiter in it must be noticed before what follows the delimiter is taken for a name that may be shown.
func (b *builder) url(raw, source string) {
	b.source = source
	raw = strings.TrimSpace(raw)
	switch {
	case raw == "":
		b.abandon(strings.TrimSuffix(source, ": "), errEmpty)
		return
	case strings.ContainsAny(raw[:1], quotes):
		b.abandon(strings.TrimSuffix(source, ": "), errQuoted)
		return
	}
	raw, query, _ := strings.Cut(raw, "?")
	scheme, rest, ok := strings.Cut(raw, ":")
	rest, slashes := strings.CutPrefix(rest, "//")
	scheme, driver, plus := strings.Cut(scheme, "+")
	scheme = strings.ToLower(scheme)
	switch known := slices.Contains(schemeNames(), scheme); {
	case strings.Contains(query, "@") || strings.Contains(raw+query, "#"):
		b.abandon(source+"address", errEscape)
		return
	case !ok || !known && !slashes:
		b.abandon(source+"scheme", errNoScheme)
		return
	case instead[scheme] != "":
		b.abandon(source+"scheme", fmt.Errorf("unknown scheme %q: %s", scheme, instead[scheme]))
		return
	case !known:
		b.report(source+"scheme", unknown("scheme", scheme, schemeNames()))
		if scheme = nearest(scheme, schemeNames()); scheme == "" {
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
	b.about = schemes[slices.Index(schemeNames(), scheme)].section
	b.driver(driver, plus)
	switch b.about {
	case "redis":
		b.c.Backend = backendRedis
		b.address(scheme, authority, path)
	case "redlock":
		b.c.Backend = backendRedlock
		b.address(scheme, authority, path)
	default:
		b.c.Backend = backendMemory
		if authority != "" || strings.Trim(path, "/") != "" {
			b.report(source+"address", errors.New("memory: takes nothing but parameters"))
		}
	}
	b.query(scheme, query)
}

// driver takes the driver that was named in the scheme.
func (b *builder) driver(name string, named bool) {
	switch {
	case !named:
	case b.about == "":
		b.report(b.source+"scheme", errors.New("memory: has no driver"))
	case instead[b.about+"-"+name] != "":
		b.fail(b.about+".driver", b.source+"scheme", fmt.Errorf("unknown driver %q: %s", name, instead[b.about+"-"+name]))
	case name == "":
		b.fail(b.about+".driver", b.source+"scheme", errors.New("there is no driver after the plus sign"))
	default:
		b.set(b.about+".driver", name, b.source+"driver")
	}
}

// address takes what stands between the scheme and the parameters.
func (b *builder) address(scheme, authority, path string) {
	host := authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		host = authority[i+1:]
		b.userinfo(authority[:i])
	}
	switch scheme {
	case "unix":
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
	case secure[b.about]:
		encrypted(b.conn().tls)
	}
	if b.about == "redlock" {
		b.hosts(host)
	} else {
		b.c.Redis.Addr = b.host(host, "redis.addr", b.source+"addr")
	}
	if db := strings.TrimPrefix(path, "/"); db != "" {
		b.set(b.about+".db", db, b.source+"db")
	}
}

// hosts takes the nodes of a Redlock.
func (b *builder) hosts(list string) {
	where := b.source + "nodes"
	b.origin[nodesPath] = where
	if list == "" {
		return // check says that they are missing
	}
	for i, host := range strings.Split(list, ",") {
		addr := b.host(host, nodePath(i)+".addr", fmt.Sprintf("%s[%d].addr", where, i))
		b.c.Redlock.Nodes = append(b.c.Redlock.Nodes, Node{Addr: addr})
	}
}

// host returns an address in its full form. That of a socket begins with a slash, which is escaped.
func (b *builder) host(s, path, where string) string {
	if b.about == "redlock" && len(s) > 2 && strings.EqualFold(s[:3], "%2f") {
		p, err := url.PathUnescape(s)
		if err != nil {
			b.fail(path, where, errPercent)
		}
		return p
	}
	if strings.HasPrefix(s, "[") {
		s = strings.Replace(s, "%25", "%", 1) // of a zone
	}
	addr, err := hostPort(s)
	if err != nil && !errors.Is(err, errList) { // of which check has more to say
		b.fail(path, where, err)
	} else if err != nil {
		addr = s
	}
	return addr
}

// conn is the section that the URL is about.
func (b *builder) conn() conn {
	if b.about == "redlock" {
		return b.c.Redlock.conn()
	}
	return b.c.Redis.conn()
}

// userinfo takes what stands before the @.
func (b *builder) userinfo(s string) {
	user, password, colon := strings.Cut(s, ":")
	switch path := b.about + ".password"; {
	case b.about == "redlock" && strings.Contains(s, ","): // of u:p@h1,u:p@h2
		b.fail(path, b.source+"password", errOnce)
		return
	case strings.Contains(s, "@") || strings.Contains(password, ":"):
		b.fail(path, b.source+"password", errEscape)
		return
	}
	for _, part := range []struct{ name, value string }{{"username", user}, {"password", password}} {
		path := b.about + "." + part.name
		v, err := url.PathUnescape(part.value)
		switch {
		case err != nil:
			b.fail(path, b.source+part.name, errPercent)
		case v != "" || part.name == "password" && colon:
			b.set(path, v, b.source+part.name)
		}
	}
}

// query takes the parameters.
func (b *builder) query(scheme, query string) {
	known := b.params(scheme)
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
		case name == "fifo" && !slices.Contains(known, name):
			b.report(where, errFIFO)
		case !slices.Contains(known, name):
			if s, ok := secure[b.about]; ok && slices.Contains(b.params(s), name) {
				b.report(where, fmt.Errorf("only with %s://", s))
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
	f := fields[slices.IndexFunc(fields, func(f *field) bool { return f.param == name && f.of(b.about) })]
	at := b.conn()
	driver, db := *at.driver, *at.db
	_, again := b.origin[f.path]
	b.set(f.path, v, where)
	if again && !b.failed[f.path] && (driver != *at.driver || db != *at.db) {
		b.fail(f.path, where, errors.New("given twice, and differently: once as a parameter and once before"))
	}
}

// params returns the names of the parameters that scheme has.
func (b *builder) params(scheme string) []string {
	var names []string
	for _, f := range fields {
		if f.of(b.about) && (scheme == secure[b.about] || !strings.HasPrefix(f.param, "tls_")) {
			names = append(names, f.param)
		}
	}
	return names
}

// String returns c as a URL, with the mask in place of a password. If there is none, Parse gives c back. But single nodes
// of a Redlock can have settings for which a URL has no place: they follow a #, and Parse does not take them.
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
	add("ttl", c.TTL.param())
	if _, ok := levels[c.Log]; ok { // else it may be anything
		add("log", c.Log)
	}
	if c.Tracing {
		add("tracing", "true")
	}
	c.Retry.params(add)
	s, rest := c.Backend+":", ""
	switch c.Backend {
	case backendRedis:
		s = c.Redis.url(add)
	case backendRedlock:
		s, rest = c.Redlock.url(add)
	}
	if len(q) > 0 {
		s += "?" + q.Encode()
	}
	return s + rest
}

func (d Duration) param() string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// url returns the part up to the parameters; what does not fit there goes to param.
func (r *Redis) url(param func(name, v string)) string {
	if r.FIFO != nil {
		param("fifo", strconv.FormatBool(*r.FIFO))
	}
	network, addr, err := r.address()
	if err != nil {
		network, addr = "tcp", "" // not shown: it may be anything
	}
	if network == "unix" {
		if r.DB != 0 {
			param("db", strconv.Itoa(r.DB))
		}
		return r.begin("unix", param) + strings.ReplaceAll((&url.URL{Path: addr}).EscapedPath(), "@", "%40")
	}
	return r.begin("redis", param) + strings.ReplaceAll(addr, "%", "%25") + r.end()
}

// begin returns the part up to the address, and end what comes between the address and the parameters.
func (r *Redis) begin(scheme string, param func(name, v string)) string {
	param("password_file", r.PasswordFile)
	param("timeout", r.Timeout.param())
	if t := r.TLS; t != nil {
		if s, ok := secure[scheme]; ok {
			scheme = s
		}
		param("tls_ca_file", t.CAFile)
		param("tls_cert_file", t.CertFile)
		param("tls_key_file", t.KeyFile)
		param("tls_server_name", t.ServerName)
	}
	if r.Driver != "" {
		scheme += "+" + r.Driver
	}
	scheme += "://"
	if r.Username != "" || r.Password != "" {
		scheme += strings.ReplaceAll(url.User(r.Username).String(), ",", "%2C")
		if r.Password != "" {
			scheme += ":" + r.Password.String()
		}
		scheme += "@"
	}
	return scheme
}

func (r *Redis) end() string {
	if r.DB == 0 {
		return ""
	}
	return "/" + strconv.Itoa(r.DB)
}

// url returns the part up to the parameters, and what no URL can say.
func (r *Redlock) url(param func(name, v string)) (s, rest string) {
	param("budget", r.Budget.param())
	var hosts, own []string
	for i := range r.Nodes {
		n := &r.Nodes[i]
		network, addr, err := r.server(i).address()
		switch {
		case err != nil:
			addr = "" // not shown: it may be anything
		case network == "unix":
			addr = strings.ReplaceAll(url.QueryEscape(addr), "+", "%20")
		default:
			addr = strings.ReplaceAll(addr, "%", "%25")
		}
		hosts = append(hosts, addr)
		say := func(name, v string) {
			if v != "" {
				own = append(own, fmt.Sprintf("nodes[%d].%s=%s", i, name, url.QueryEscape(v)))
			}
		}
		if nodeNameRE.MatchString(n.Name) {
			say("name", n.Name)
		}
		say("driver", n.Driver)
		say("username", n.Username)
		say("password", n.Password.String())
		say("password_file", n.PasswordFile)
		if t := n.TLS; t != nil {
			say("tls", "true")
			say("tls.ca_file", t.CAFile)
			say("tls.cert_file", t.CertFile)
			say("tls.key_file", t.KeyFile)
			say("tls.server_name", t.ServerName)
		}
	}
	section := r.section()
	if own != nil {
		rest = "#" + strings.Join(own, "&")
	}
	return section.begin("redlock", param) + strings.Join(hosts, ",") + section.end(), rest
}
