package config

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/core/label"
	"github.com/golocker/locker/internal/redis/servers"
	"github.com/golocker/locker/middleware/audit"
	"github.com/golocker/locker/middleware/logging"
	"github.com/golocker/locker/middleware/retry"
	"github.com/golocker/locker/single"
)

// Config says which locks a program uses. It is plain data: fill it in, or get it from [Parse] or [Load]. The zero
// value of every field but Backend stands for a default.
type Config struct {
	// Backend is the name of a backend: "memory", "redis", "redlock", or another that is registered, see [Register].
	Backend string `yaml:"backend" json:"backend" url:"-"`
	// Prefix is put before every key. Nil: "lock:". It may be empty, see single.Prefix.
	Prefix *string `yaml:"prefix,omitempty" json:"prefix,omitempty"`
	// TTL is the lease time of calls that do not choose one. Zero: the program's own default, or locker.DefaultTTL.
	TTL Duration `yaml:"ttl,omitempty" json:"ttl,omitempty"`
	// Patience is how long a waiting Lock tolerates a store that fails, see locker.Patience. Zero: the program's own
	// default, or locker.DefaultPatience.
	Patience Duration `yaml:"patience,omitempty" json:"patience,omitempty"`
	// Label names the holders of locks for people, see locker.Label. Nil: the program's own default, or host and process
	// ID. Empty: locks have no label.
	Label *string `yaml:"label,omitempty" json:"label,omitempty"`
	// NoLocalHandover keeps locks from being handed over within the process, see locker.NoLocalHandover. False: the
	// program's own default, or they are.
	NoLocalHandover bool `yaml:"no_local_handover,omitempty" json:"no_local_handover,omitempty"`
	// Log is the level from which on locks are logged: "debug", "info" or "warn". See package middleware/logging.
	// Empty: they are not.
	Log string `yaml:"log,omitempty" json:"log,omitempty"`
	// Audit is the path of a file for an audit log. See package middleware/audit. Empty: there is none.
	Audit string `yaml:"audit,omitempty" json:"audit,omitempty"`
	// AuditHashKeys writes hashes into the audit log instead of keys.
	AuditHashKeys bool `yaml:"audit_hash_keys,omitempty" json:"audit_hash_keys,omitempty"`
	// Tracing traces and measures locks, by the middleware that [RegisterTracing] was given. False: they are not.
	Tracing bool `yaml:"tracing,omitempty" json:"tracing,omitempty"`
	// Retry says how operations are retried that failed because of the store. See package middleware/retry. Nil: they
	// are not.
	Retry *Retry `yaml:"retry,omitempty" json:"retry,omitempty"`
	// Redis is used if Backend is "redis".
	Redis Redis `yaml:"redis,omitempty" json:"redis,omitzero"`
	// Redlock is used if Backend is "redlock".
	Redlock Redlock `yaml:"redlock,omitempty" json:"redlock,omitzero"`
	// Logger takes what Log switches on, and warnings about the servers: see single.Logger and redlock.Logger. It is no
	// setting of a file. If it is nil, slog.Default is used, and the servers are checked only if Log is set.
	Logger *slog.Logger `yaml:"-" json:"-"`
	// Credentials returns the user and the password for each new connection, instead of the settings of the backend for
	// them, which must be empty. It is not a setting of a file. A backend that connects to a server and does not use it
	// refuses it: Validate and Open return an error. If it is nil, the settings are used.
	Credentials Credentials `yaml:"-" json:"-" xml:"-"`
	// Sections are the settings of other backends by their names: of a Kind[S], a *S. See [Register].
	Sections Sections `yaml:",inline" json:"-" xml:"-"`
}

// Sections are settings by the names of their backends.
type Sections map[string]any

// Format writes s as JSON, whatever the verb: package fmt would show secrets behind pointers if the verb is none for
// pointers.
func (s Sections) Format(f fmt.State, _ rune) {
	data, _ := json.Marshal(map[string]any(s))
	_, _ = f.Write(data)
}

// Validate reports everything that would keep Open from succeeding, short of reading files: one line for each problem,
// with the path of the field as it is written in YAML.
func (c *Config) Validate() error {
	_, err := newBuilder(c.clone()).finish()
	return err
}

// check reports what is wrong with c. A section that is not used is not looked at.
func (c *Config) check(report Report) {
	switch ttl := time.Duration(c.TTL); {
	case ttl <= 0:
	case ttl < locker.MinTTL:
		report("ttl", fmt.Errorf("%v is below the minimum of %v", ttl, locker.MinTTL))
	case ttl > locker.MaxTTL:
		report("ttl", fmt.Errorf("%v is above the maximum of %v", ttl, locker.MaxTTL))
	}
	if c.Label != nil {
		report("label", label.Check(*c.Label))
	}
	settings := slices.Clone(common)
	k := backend(c.Backend)
	if k != nil {
		settings = append(settings, k.fields...)
	}
	for _, f := range settings {
		if v := f.find(c, false); v.IsValid() && v.CanInt() && v.Int() < 0 {
			report(f.path, errors.New("negative: give more than 0, or 0 for the default"))
		}
	}
	if k != nil && k.onRedis == nil { // those on Redis know the port, and what to write instead
		for _, f := range k.fields {
			if f.typ == reflect.TypeFor[Addrs]() && !strings.Contains(f.path, "[]") {
				c.checkAddrs(f, report)
			}
		}
	}
	switch {
	case c.Backend == "":
		report("backend", errors.New("missing: give one of "+strings.Join(backendNames(), ", ")))
	case k == nil && strings.HasPrefix(instead[c.Backend], importOf(c.Backend)):
		report("backend", fmt.Errorf("unknown backend %q: %s", c.Backend, instead[c.Backend]))
	case k == nil:
		report("backend", unknown("backend", c.Backend, backendNames()))
	case k.Check != nil:
		k.Check(c, func(setting string, err error) { report(k.name+"."+setting, err) })
	}
	if k != nil && k.onRedis != nil {
		c.checkGuard(k.onRedis(c), report)
	}
	if k != nil {
		c.checkCredentials(k, report)
	}
	if _, ok := levels[c.Log]; c.Log != "" && !ok {
		report("log", unknown("level", c.Log, levelNames))
	}
	if c.AuditHashKeys && c.Audit == "" {
		report("audit_hash_keys", errors.New("has no effect without audit"))
	}
	if c.Tracing && newTracing == nil {
		report("tracing", errNoTracing)
	}
	c.Retry.check(report)
}

// checkAddrs reports what is wrong with the addresses of f, if there are any.
func (c *Config) checkAddrs(f *field, report Report) {
	if v := f.find(c, false); v.IsValid() && v.Len() > 0 {
		_, err := v.Interface().(Addrs).full("")
		report(f.path, err)
	}
}

func (c *Config) clone() *Config { return cloned(reflect.ValueOf(c)).Interface().(*Config) }

// UnmarshalYAML implements yaml.Unmarshaler, for a Config that is part of a program's own file. It is as strict as
// [Load], but does not say what is missing: see Validate.
func (c *Config) UnmarshalYAML(n *yaml.Node) error {
	b := newBuilder(c.clone())
	b.section("YAML", "", n)
	if err := errors.Join(b.problems...); err != nil {
		return err
	}
	*c = *b.c
	return nil
}

// UnmarshalJSON implements json.Unmarshaler in the same way: JSON is YAML, too.
func (c *Config) UnmarshalJSON(data []byte) error { return yaml.Unmarshal(data, c) }

// MarshalJSON implements json.Marshaler. Secrets are masked.
func (c Config) MarshalJSON() ([]byte, error) {
	type plain Config
	own, err := json.Marshal(plain(c))
	if err != nil || len(c.Sections) == 0 {
		return own, err
	}
	others, err := json.Marshal(c.Sections)
	if err != nil {
		return nil, err
	}
	return slices.Concat(own[:len(own)-1], []byte(","), others[1:]), nil
}

// cloned returns a copy of v that shares nothing with it.
func cloned(v reflect.Value) reflect.Value {
	if !v.IsValid() || v.IsZero() {
		return v
	}
	switch v.Kind() {
	case reflect.Interface:
		return cloned(v.Elem())
	case reflect.Pointer:
		c := reflect.New(v.Type().Elem())
		c.Elem().Set(cloned(v.Elem()))
		return c
	case reflect.Struct:
		c := reflect.New(v.Type()).Elem()
		c.Set(v)
		for i := range v.NumField() {
			if c.Field(i).CanSet() {
				c.Field(i).Set(cloned(v.Field(i)))
			}
		}
		return c
	case reflect.Slice:
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			c.Index(i).Set(cloned(v.Index(i)))
		}
		return c
	case reflect.Map:
		c := reflect.MakeMapWithSize(v.Type(), v.Len())
		for _, key := range v.MapKeys() {
			c.SetMapIndex(key, cloned(v.MapIndex(key)))
		}
		return c
	}
	return v
}

// checkGuard reports a restart guard that cannot work, or that refuses each lock with the TTL of c.
func (c *Config) checkGuard(s onRedis, report Report) {
	guard := s.guard()
	switch g := time.Duration(guard); {
	case g <= 0:
	case g < locker.MinTTL:
		report(c.Backend+".guard", fmt.Errorf("%v is below the minimum of %v", g, locker.MinTTL))
	case g > locker.MaxTTL:
		report(c.Backend+".guard", fmt.Errorf("%v is above the maximum of %v, which no TTL exceeds", g, locker.MaxTTL))
	case c.TTL > guard:
		report(c.Backend+".guard", fmt.Errorf("%v is less than the ttl of %v: give the longest TTL of all locks", g,
			time.Duration(c.TTL)))
	}
}

// Credentials is a function that is called for every new connection to a server, and returns the user and the password
// for it. It is for tokens that expire, and for passwords from elsewhere than a file. It may be called concurrently. An
// empty user is the default one, or none. If it returns an error, no connection is made, and calls for locks fail with
// locker.ErrUnavailable and that error. All servers of a Redlock get the same.
type Credentials func(ctx context.Context) (username, password string, err error)

var errCredentials = errors.New("there is a function for credentials, too: remove one of them")

// checkCredentials reports settings that Credentials would override, and a backend that would not call it. Locks in
// this process need no credentials.
func (c *Config) checkCredentials(k *kind, report Report) {
	switch {
	case c.Credentials == nil || k.InProcess:
		return
	case k.onRedis == nil && k.Credentials == nil:
		report("Credentials", fmt.Errorf("the backend %s does not call such a function: remove it, or connect to the store "+
			"in code, without a configuration", k.name))
		return
	case k.onRedis == nil:
		for _, name := range []string{"username", "password", "password_file"} {
			if f := k.field(name); f != nil {
				if _, given := f.text(c); given {
					report(f.path, errCredentials)
				}
			}
		}
		return
	}
	for _, l := range k.onRedis(c).logins() {
		switch {
		case l.password != "":
			report(l.path+".password", errCredentials)
		case l.file != "":
			report(l.path+".password_file", errCredentials)
		}
	}
}

// String returns c as a URL in which passwords are masked. Without a password, Parse of the result returns c. Settings
// of single nodes of a Redlock cannot be part of a URL: they follow a #, and Parse refuses them.
func (c Config) String() string {
	k := backend(c.Backend)
	if k == nil {
		return c.Backend + ":"
	}
	own := c.clone()
	if _, ok := levels[c.Log]; !ok {
		own.Log = "" // not shown: it may be part of a secret
	}
	var at Location
	if k.Format != nil {
		at = k.Format(own)
	}
	text := func(setting string) (text string) {
		if f := k.field(setting); f != nil {
			text, _ = f.text(own)
		}
		return text
	}
	s := cmp.Or(at.Scheme, k.name)
	if secure := k.secure(s); secure != "" && text("tls") != "" {
		s = secure
	}
	if driver := text("driver"); driver != "" {
		s += "+" + driver
	}
	s += ":"
	if k.Parse != nil {
		if !k.Paths || strings.HasPrefix(at.Path, "/") {
			s += "//" + userinfo(text("username"), text("password")) + at.Host
		}
		s += strings.ReplaceAll((&url.URL{Path: at.Path}).EscapedPath(), "@", "%40")
	}
	q := make(url.Values)
	for _, f := range slices.Concat(common, k.fields) {
		switch v, given := f.text(own); {
		case f.param == "" || f.path == k.name+".driver" || !given:
		case f.isSwitch() && !f.in(own).Elem().IsZero(): // its fields switch it on already
		default:
			q.Set(f.param, v)
		}
	}
	if len(q) > 0 {
		s += "?" + q.Encode()
	}
	return s + elements(own, k)
}

func userinfo(user, password string) string {
	if user == "" && password == "" {
		return ""
	}
	s := strings.ReplaceAll(url.User(user).String(), ",", "%2C")
	if password != "" {
		s += ":" + password
	}
	return s + "@"
}

// elements returns the settings of the elements of k's list, except their addresses.
func elements(c *Config, k *kind) string {
	var own []string
	for _, list := range k.fields {
		if !list.isList() {
			continue
		}
		v := list.in(c)
		for i, all := 0, v.Slice(0, v.Len()); i < all.Len(); i++ {
			v.Set(all.Slice(0, i+1)) // in which i is the last element
			for _, f := range k.fields {
				name, below := strings.CutPrefix(f.path, list.path+"[].")
				if !below || name == "addr" {
					continue
				}
				if text, given := f.text(c); given {
					in := strings.TrimPrefix(list.path, k.name+".")
					own = append(own, fmt.Sprintf("%s[%d].%s=%s", in, i, name, url.QueryEscape(text)))
				}
			}
		}
	}
	if own == nil {
		return ""
	}
	return "#" + strings.Join(own, "&")
}

// Opened is the Locker that a configuration describes. Close it when no lock is needed any more.
type Opened struct {
	locker.Locker // with all middleware
	client        *locker.Client
	log           *audit.Log // nil if there is none
	inProcess     bool
}

// Close implements io.Closer. If the store does not answer, it takes up to the timeout of the configuration, 5 s by
// default, and a second more. It does not release locks: see [locker.Client.Close].
func (o *Opened) Close() error {
	err := o.client.Close()
	if o.log != nil {
		err = errors.Join(err, o.log.Close())
	}
	return err
}

// Drain acquires no locks from now on, and waits until those that are held are unlocked; see [locker.Client.Drain].
func (o *Opened) Drain(ctx context.Context) []locker.Lease { return o.client.Drain(ctx) }

// Unwrap lets [locker.As] find the optional interfaces behind o.
func (o *Opened) Unwrap() locker.Locker { return o.Locker }

// TryLockMany implements [locker.ManyLocker].
func (o *Opened) TryLockMany(ctx context.Context, m locker.Many, opts ...locker.Option) ([]locker.Lease, error) {
	return locker.TryLockMany(ctx, o.Locker, m, opts...)
}

// InProcess reports whether the locks are visible only in this process.
func (o *Opened) InProcess() bool { return o.inProcess }

// Open returns the Locker that a URL describes; see [Parse] for what it reports and [Config.Open] for the rest.
func Open(ctx context.Context, url string, opts ...locker.Option) (*Opened, error) {
	c, err := Parse(url)
	if err != nil {
		return nil, err
	}
	return c.Open(ctx, opts...)
}

// Open validates c and returns the Locker it describes. It reads the files that c names. Open does not wait for
// servers: if one is down, the first call for a lock reports it. With Log or Logger in c, servers are asked for their
// settings in the background, and a warning is logged for each setting that weakens a promise.
//
// opts are the program's defaults for all calls. TTL, Patience, Label and NoLocalHandover in c override them, and
// options of a call override both.
func (c *Config) Open(ctx context.Context, opts ...locker.Option) (*Opened, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	own, k := c.opening(), backend(c.Backend)
	if err := own.readFiles(k); err != nil {
		return nil, err
	}
	log, err := own.openAudit()
	if err != nil {
		return nil, err
	}
	client, err := k.Open(ctx, own, own.prefix())
	if err != nil {
		if log != nil {
			_ = log.Close()
		}
		return nil, err
	}
	opts = slices.Clip(opts)
	if own.TTL != 0 {
		opts = append(opts, locker.TTL(time.Duration(own.TTL)))
	}
	if own.Patience != 0 {
		opts = append(opts, locker.Patience(time.Duration(own.Patience)))
	}
	if own.Label != nil {
		opts = append(opts, locker.Label(*own.Label))
	}
	if own.NoLocalHandover {
		opts = append(opts, locker.NoLocalHandover())
	}
	var l locker.Locker = client
	if log != nil {
		l = log.Middleware(own.store(k))(l)
	}
	return &Opened{own.wrap(l, opts), client, log, k.InProcess}, nil
}

// openAudit opens the audit log, or returns nil if there is none.
func (c *Config) openAudit() (*audit.Log, error) {
	if c.Audit == "" {
		return nil, nil
	}
	var opts []audit.Option
	if c.AuditHashKeys {
		opts = append(opts, audit.HashKeys())
	}
	log, err := audit.Open(c.Audit, opts...)
	if err != nil {
		return nil, fmt.Errorf("config: audit: %w", err)
	}
	return log, nil
}

// store names the store for audit logs: the same for all programs that share its locks, and without secrets. What only
// this machine or this process knows under that name has it in the name.
func (c *Config) store(k *kind) string {
	var at Location
	if k.Format != nil {
		at = k.Format(c.clone())
	}
	name := fmt.Sprintf("%s://%s%s?prefix=%s", k.name, at.Host, at.Path, url.QueryEscape(c.prefix()))
	local := at.Host == "" || slices.ContainsFunc(strings.Split(at.Host, ","), func(host string) bool {
		return strings.HasPrefix(host, "localhost") || strings.HasPrefix(host, "127.") || strings.HasPrefix(host, "[::1]")
	})
	switch {
	case k.InProcess:
		name += "#" + label.Default
	case local:
		host, _ := os.Hostname()
		name += "#" + host
	}
	return name
}

// opening returns a copy of c in which the settings of the backend have the credentials and the logger of c.
func (c *Config) opening() *Config {
	own := c.clone()
	k := backend(c.Backend)
	if k.onRedis != nil {
		k.onRedis(own).use(own.logger(), own.Credentials)
	}
	if k.Credentials != nil && own.Credentials != nil {
		k.Credentials(own, own.Credentials)
	}
	if l := own.logger(); k.Logger != nil && l != nil {
		k.Logger(own, l)
	}
	return own
}

// readFiles reports files of TLS and password_file that cannot be used. Backends on Redis report those themselves, by
// server.
func (c *Config) readFiles(k *kind) error {
	var errs []error
	if k.onRedis != nil {
		return nil
	}
	for _, f := range k.fields {
		v := f.find(c, false)
		if !v.IsValid() || v.IsZero() {
			continue
		}
		switch t, ok := v.Interface().(*TLS); {
		case ok:
			t.open("", func(name string) string { return name }, nil, func(setting string, err error) {
				if err != nil {
					errs = append(errs, fmt.Errorf("config: %s.%s: %w", k.name, setting, err))
				}
			})
		case f.path == k.name+".password_file":
			if _, err := readPassword(v.String()); err != nil {
				errs = append(errs, fmt.Errorf("config: %s: %w", f.path, err))
			}
		}
	}
	return errors.Join(errs...)
}

// onRedis are the settings of a backend on Redis: they have a restart guard and passwords, and use what a program may
// set in Config. Other backends decode their settings themselves.
type onRedis interface {
	guard() Duration
	logins() []loginSettings
	use(logger *slog.Logger, credentials Credentials)
	deploy(ctx context.Context) (*servers.Deployment, error) // without Prefix and TTL
}

// logger returns the logger for a look at the servers, or nil.
func (c *Config) logger() *slog.Logger {
	if c.Logger == nil && c.Log != "" {
		return slog.Default()
	}
	return c.Logger
}

func (c *Config) prefix() string {
	if c.Prefix == nil {
		return single.DefaultPrefix
	}
	return *c.Prefix
}

func init() {
	servers.Of = func(ctx context.Context, c any) (*servers.Deployment, error) { return c.(*Config).deployment(ctx) }
}

// deployment is [servers.Of].
func (c *Config) deployment(ctx context.Context) (*servers.Deployment, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	own, d, k := c.opening(), new(servers.Deployment), backend(c.Backend)
	if err := own.readFiles(k); err != nil {
		return nil, err
	}
	if k.onRedis != nil {
		var err error
		if d, err = k.onRedis(own).deploy(ctx); err != nil {
			return nil, err
		}
	}
	d.Prefix, d.TTL = own.prefix(), own.TTL.or(locker.DefaultTTL)
	return d, nil
}

var newTracing func() locker.Middleware

// RegisterTracing makes the setting "tracing" available, as drivers.Register does for drivers. A program without
// tracing is then smaller. Call it from init. It panics if it is called twice.
func RegisterTracing(middleware func() locker.Middleware) {
	if newTracing != nil {
		panic("config: tracing is registered twice")
	}
	newTracing = middleware
}

var errNoTracing = errors.New("not linked in: the program has to import _ " +
	`"github.com/golocker/locker/config/tracing", or to call config.RegisterTracing`)

// Retry configures how failed operations are retried. The zero value of a field means the default of package
// middleware/retry.
type Retry struct {
	// For is for how long one call is retried. Zero: retry.DefaultFor.
	For Duration `yaml:"for,omitempty" json:"for,omitempty"`
	// BaseDelay and MaxDelay bound the pauses: the first one, and all. Zero: retry.DefaultBaseDelay and
	// retry.DefaultMaxDelay.
	BaseDelay Duration `yaml:"base_delay,omitempty" json:"base_delay,omitempty"`
	MaxDelay  Duration `yaml:"max_delay,omitempty" json:"max_delay,omitempty"`
	// PerSecond is the number of retries per second of all calls together. Zero: retry.DefaultPerSecond.
	PerSecond int `yaml:"per_second,omitempty" json:"per_second,omitempty" min:"1"`
	// OnHeld makes TryLock repeat its attempt while another owner holds the lock.
	OnHeld bool `yaml:"on_held,omitempty" json:"on_held,omitempty"`
}

var levelNames = []string{"debug", "info", "warn"}

// levels omits the level error, because nothing is logged as one.
var levels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn}

func (r *Retry) check(report Report) {
	if r == nil {
		return
	}
	base, most := time.Duration(r.BaseDelay), time.Duration(r.MaxDelay)
	if base == 0 {
		base = retry.DefaultBaseDelay
	}
	if most == 0 {
		most = retry.DefaultMaxDelay
	}
	switch {
	case base <= most || most < 0:
	case r.BaseDelay == 0:
		report("retry.max_delay", fmt.Errorf("%v is less than the first pause of %v: raise max_delay, or lower base_delay",
			most, base))
	default:
		report("retry.base_delay", fmt.Errorf("%v is more than the longest pause of %v: lower base_delay, or raise max_delay",
			base, most))
	}
}

// wrap adds the middleware that c switches on to l. Tracing is outermost, so a span covers a call with all its retries.
// Logging is innermost, so it logs each failure of the store, and not only the failures after all retries.
func (c *Config) wrap(l locker.Locker, defaults []locker.Option) locker.Locker {
	var ms []locker.Middleware
	if len(defaults) > 0 {
		ms = append(ms, locker.Defaults(defaults...))
	}
	if c.Tracing {
		ms = append(ms, newTracing())
	}
	if r := c.Retry; r != nil {
		opts := []retry.Option{
			retry.For(time.Duration(r.For)), retry.Backoff(time.Duration(r.BaseDelay), time.Duration(r.MaxDelay)),
			retry.PerSecond(r.PerSecond),
		}
		if r.OnHeld {
			opts = append(opts, retry.OnHeld())
		}
		ms = append(ms, retry.New(opts...))
	}
	if c.Log != "" {
		ms = append(ms, logging.New(c.Logger, logging.Level(levels[c.Log])))
	}
	return locker.Wrap(l, ms...)
}
