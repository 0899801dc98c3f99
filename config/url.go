package config

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/golocker/locker/drivers"
)

// Parse reads a URL of the form described at the top of this page. It reports all problems at once, and never repeats
// the URL itself.
func Parse(url string) (*Config, error) {
	b := newBuilder(new(Config))
	b.url(url, "URL: ")
	return b.finish()
}

// importOf is the advice for a program that does not import the backend of this name.
func importOf(backend string) string {
	return `import _ "github.com/golocker/locker/backends/` + backend + `lock"`
}

// moduleOf is importOf for a backend that is a module of its own.
func moduleOf(backend string) string { return importOf(backend) + ", which is a module of its own" }

// instead maps schemes of other programs, and those of the project that this program has not linked in, to advice.
var instead = map[string]string{
	"file":             importOf("file"),
	"postgres":         moduleOf("postgres"),
	"postgresql":       moduleOf("postgres"),
	"nats":             moduleOf("nats"),
	"natss":            moduleOf("nats"),
	"etcd":             moduleOf("etcd"),
	"etcds":            moduleOf("etcd"),
	"s3":               moduleOf("s3"),
	"dynamodb":         moduleOf("dynamodb"),
	"kubernetes":       moduleOf("kubernetes"),
	"mysql":            moduleOf("mysql"),
	"mysqls":           moduleOf("mysql"),
	"redis-sentinel":   "write redis+sentinel://host:26379,host:26379/mymaster",
	"rediss-sentinel":  "write rediss+sentinel://host:26379,host:26379/mymaster",
	"sentinel":         "write redis+sentinel://host:26379,host:26379/mymaster",
	"valkey-sentinel":  "write valkey+sentinel://host:26379,host:26379/mymaster",
	"redis-cluster":    "write redis+cluster://host:6379,host:6379",
	"rediss-cluster":   "write rediss+cluster://host:6379,host:6379",
	"valkey-cluster":   "write valkey+cluster://host:6379,host:6379",
	"redis-tls":        "write rediss://",
	"redis-ssl":        "write rediss://",
	"redis-socket":     "write unix:///path/of.sock",
	"redis-unix":       "write unix:///path/of.sock",
	"tcp":              "write redis://",
	"tls":              "write rediss://",
	"redlock-cluster":  noClusterNode,
	"redlock-sentinel": "nodes that sentinels manage are only for files, where each has its section sentinel",
}

// masterNames are the parameters, in lower case, by which other programs name the master of a sentinel.
var masterNames = []string{"master", "mastername", "master_name", "sentinel_master", "sentinelmasterid", "master_set"}

// schemeNames returns the known schemes. Of those with a plus sign, it returns those that begin with the name of the
// backend.
func schemeNames() (names []string) {
	for _, k := range kinds() {
		for _, s := range k.Schemes {
			if !strings.Contains(s, "+") || strings.HasPrefix(s, k.name+"+") {
				names = append(names, s)
			}
		}
	}
	return names
}

var (
	errEscape = errors.New("an @, : or # where none is expected: in the user name and the password write " +
		"@ as %40, : as %3A, / as %2F, ? as %3F, # as %23 and % as %25; elsewhere write @ as %40 and # as %23")
	errPercent = errors.New("a % that is not followed by two hexadecimal digits: write it as %25")
	errEmpty   = errors.New("empty: is " + envURL + " set?")
	errQuoted  = errors.New("in quotes: remove them (docker --env-file, for example, does not)")
	errOnce    = errors.New("user and password are written once, before the first host, and are used for all hosts; " +
		"in them, write , as %2C")
	errPassword = errors.New("not among the parameters: write redis://user:password@host, or use password_file")
	errWatcher  = errors.New("not among the parameters: use sentinel_password_file, or " +
		"LOCKER_REDIS_SENTINEL_PASSWORD")
	errMaster = errors.New("not among the parameters: write it behind the sentinels, as in redis+sentinel://host/mymaster")
)

// url reads raw into b.
//
// It does not use net/url, for two reasons. The errors of net/url repeat the URL or parts of its password. And a
// password that contains a delimiter must be noticed before the text after the delimiter is treated as a name and
// shown.
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
	scheme, driver, plus := cutScheme(scheme)
	k := kindOf(scheme)
	switch {
	case strings.Contains(query, "@") || strings.Contains(raw+query, "#"):
		b.abandon(source+"address", errEscape)
		return
	case !ok || k == nil && !slashes && instead[scheme] == "":
		b.abandon(source+"scheme", fmt.Errorf("missing: write redis://host:6379, for example (known: %s)",
			strings.Join(schemeNames(), ", ")))
		return
	case k == nil && instead[scheme] != "":
		b.abandon(source+"scheme", fmt.Errorf("unknown scheme %q: %s", scheme, instead[scheme]))
		return
	case k == nil:
		err := unknown("scheme", scheme, schemeNames())
		scheme = nearest(scheme, schemeNames())
		if k = kindOf(scheme); k == nil {
			b.abandon(source+"scheme", fmt.Errorf("%w: a program that imports another backend has its schemes as well; "+
				"those of the project are under github.com/golocker/locker/backends", err))
			return
		}
		b.report(source+"scheme", err)
	case !slashes && k.Parse != nil && !k.Paths:
		b.abandon(source+"scheme", errors.New("must be followed by ://"))
		return
	}

	authority, path := rest, ""
	if k.Paths && !slashes {
		authority, path = "", rest
	} else if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if strings.Contains(path, "@") {
		b.abandon(source+"address", errEscape)
		return
	}
	b.about, b.c.Backend = k, k.name
	b.driver(driver, plus)
	if b.broken {
		return
	}
	host := authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		host = authority[i+1:]
		b.userinfo(authority[:i], k.hasList() || strings.Contains(scheme, "+"))
	}
	b.location(scheme, host, path)
	b.query(scheme, query)
	if valkey := "valkey"; b.about.onRedis != nil && strings.HasPrefix(scheme, valkey) && b.c.Redis.Driver == "" &&
		slices.Contains(drivers.Names(), valkey) {
		b.c.Redis.Driver = valkey
	}
}

// cutScheme splits what stands before the colon into the longest scheme that is known, and the driver after it.
func cutScheme(s string) (scheme, driver string, plus bool) {
	scheme, driver, plus = strings.Cut(s, "+")
	scheme = strings.ToLower(scheme)
	word, rest, more := strings.Cut(driver, "+")
	if long := scheme + "+" + strings.ToLower(word); kindOf(long) != nil {
		return long, rest, more
	}
	return scheme, driver, plus
}

// driver sets the driver from the scheme.
func (b *builder) driver(name string, named bool) {
	f := b.about.field("driver")
	switch other := instead[b.about.name+"-"+name]; {
	case !named:
	case f == nil:
		b.report(b.source+"scheme", fmt.Errorf("the backend %s has no driver: write it without a plus sign", b.about.name))
	case other != "":
		b.abandon(b.source+"scheme", fmt.Errorf("unknown driver %q: %s", name, other))
	case strings.Contains(name, "+"):
		b.fail(f.path, b.source+"scheme", errors.New("two names after plus signs: write the driver last, and once, as in "+
			"redis+rueidis:// or redis+sentinel+rueidis://"))
	case name == "":
		b.fail(f.path, b.source+"scheme", errors.New("there is no driver after the plus sign: name one, or remove the sign"))
	case slices.Contains(b.about.Schemes, b.about.name+"+"+nearest(name, deployments)):
		meant := b.about.name + "+" + nearest(name, deployments)
		b.abandon(b.source+"scheme", fmt.Errorf("unknown driver %q: did you mean %s://, or %s:// with TLS?", name, meant,
			b.about.secure(meant)))
	default:
		b.set(f.path, name, b.source+"driver")
	}
}

// deployments are what a scheme may have behind a plus sign, before that of the driver.
var deployments = []string{"sentinel", "cluster"}

// location parses the part between the user and the parameters.
func (b *builder) location(scheme, host, path string) {
	if b.about.isSecure(scheme) {
		b.about.field("tls").begin(b.c)
	}
	unescaped, err := url.PathUnescape(path)
	switch {
	case err != nil:
		b.abandon(b.source+"address", errPercent)
	case b.about.Parse != nil:
		b.about.Parse(b.c, Location{scheme, host, unescaped}, func(setting string, err error) {
			if path := b.about.name + "." + setting; err != nil {
				b.fail(path, b.where(path), err)
			}
		})
	case host != "" || strings.Trim(path, "/") != "":
		b.report(b.source+"address", fmt.Errorf("the backend %s has no address, only parameters: remove it", b.about.name))
	}
}

// userinfo parses the part before the @. After it, there may be several hosts if several is true.
func (b *builder) userinfo(s string, several bool) {
	user, password, colon := strings.Cut(s, ":")
	path := b.about.name + ".password"
	switch {
	case several && strings.Contains(s, ","): // of u:p@h1,u:p@h2
		b.fail(path, b.source+"password", errOnce)
		return
	case strings.Contains(s, "@") || strings.Contains(password, ":"):
		b.fail(path, b.source+"password", errEscape)
		return
	}
	for _, part := range []struct{ name, value string }{{"username", user}, {"password", password}} {
		path := b.about.name + "." + part.name
		v, err := url.PathUnescape(part.value)
		switch given := v != "" || part.name == "password" && colon; {
		case err != nil:
			b.fail(path, b.source+part.name, errPercent)
		case given && fieldAt(path) == nil:
			b.report(b.source+"address", fmt.Errorf("the backend %s has no %s: remove it", b.about.name, part.name))
		case given:
			b.set(path, v, b.source+part.name)
		}
	}
}

// query parses the parameters.
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
		case !ok: // the name is not shown: it may be the rest of a password with an &
			b.report(b.source+"parameters", errors.New("one of them has no value: write name=value"))
		case slices.Contains([]string{"password", "pass", "passwd", "pwd", "auth"}, strings.ToLower(name)):
			b.report(b.source+"password", errPassword)
		case name == "sentinel_password":
			b.report(where, errWatcher)
		case slices.Contains(masterNames, strings.ToLower(name)):
			b.report(where, errMaster)
		case !slices.Contains(known, name) && misplaced[name] != nil:
			b.report(where, misplaced[name])
		case !slices.Contains(known, name):
			if secure := b.about.secure(scheme); slices.Contains(b.params(secure), name) {
				b.report(where, fmt.Errorf("only with %s://: write that scheme, or remove the parameter", secure))
			} else {
				b.report(b.source+"parameters", unknown("parameter", name, known))
			}
		case seen[name]:
			b.report(where, errAgain)
		case err != nil:
			b.report(where, errPercent)
		default:
			b.param(name, v, where)
		}
		seen[name] = true
	}
}

// param sets one parameter. Other parts of the URL may have set it already; then they must agree.
func (b *builder) param(name, v, where string) {
	all := b.settings()
	f := all[slices.IndexFunc(all, func(f *field) bool { return f.param == name })]
	before, again := f.text(b.c)
	b.set(f.path, v, where)
	if now, _ := f.text(b.c); again && !f.isSwitch() && !b.failed[f.path] && before != now {
		b.fail(f.path, where, errors.New("given twice, and differently, as a parameter and before the parameters: "+
			"remove one of them"))
	}
}

// settings returns the settings that the URL can set.
func (b *builder) settings() []*field { return slices.Concat(common, b.about.fields) }

// params returns the names of the parameters that scheme has.
func (b *builder) params(scheme string) (names []string) {
	for _, f := range b.settings() {
		if f.param != "" && (b.about.isSecure(scheme) || !strings.HasPrefix(f.param, "tls_")) &&
			(strings.HasSuffix(scheme, "+sentinel") || !strings.HasPrefix(f.param, "sentinel_")) {
			names = append(names, f.param)
		}
	}
	return names
}
