package config

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/golocker/locker"
	"github.com/golocker/locker/memory"
)

// Kind is a kind of backend that configurations can name. [Register] makes it available.
//
// S is the struct of its settings, which is empty if there are none. One field of it is one setting: "timeout" of the
// backend "etcd" is timeout in the section etcd of a file, the parameter timeout of an etcd URL, and
// LOCKER_ETCD_TIMEOUT. The zero value of a field means that it is not given. Tags of the field say more:
//
//   - yaml and json have the name, which must be the same.
//   - url:"-" keeps the setting out of the parameters of URLs.
//   - min:"1" refuses the number 0. Numbers and times below 0 are always refused.
//
// Types are string, [Secret], [Addrs], bool, int, [Duration], others that implement encoding.TextUnmarshaler, pointers
// to these, pointers to structs of these, such as [TLS], and lists: slices of structs with a field Addr, which a
// variable gives as addresses with commas between them. The settings username and password are also what a URL says
// before an @, and driver is what it says after the plus sign of its scheme.
//
// The functions may be called concurrently, and do not change what they get unless their comments say so.
type Kind[S any] struct {
	// Schemes are what its URLs may begin with instead of its name. They may have a plus sign. A scheme may be another
	// scheme with an s appended, before the plus sign if there is one. Such a scheme switches TLS on, and the settings
	// must have a section tls.
	Schemes []string
	// InProcess says that no other process sees the locks.
	InProcess bool
	// Paths says that its URLs may say a path right behind the colon, as file:/var/locks and file:locks do. The Path of a
	// Location may then be relative. Parse must not be nil.
	Paths bool
	// Parse takes what a URL says between @ and ? into s. Nil: a URL takes nothing but parameters, and needs no
	// slashes.
	Parse func(s *S, at Location, report Report)
	// Format is the reverse of Parse. It may remove from s what the location says, so that it does not become a
	// parameter. Nil: the location is empty.
	Format func(s *S) Location
	// Check reports what is wrong with s, short of reading files. Nil: any values do.
	Check func(s *S, report Report)
	// Open returns the locks, under keys that begin with prefix. It may read files, and asks no server: one that is
	// down shows when a lock is asked for.
	Open func(ctx context.Context, s *S, prefix string) (*locker.Client, error)
	// Credentials puts the function of [Config.Credentials] into s, for Open: each new connection calls it. It is called
	// before Open, and only if there is such a function. The settings username, password and password_file must be empty
	// then. Nil: Config.Credentials is refused, unless InProcess is true.
	Credentials func(s *S, f Credentials)
	// Logger puts the logger of [Config.Logger] into s, for Open, which uses it for warnings about the servers. It is
	// called before Open, and only if servers are to be looked at. If it is nil, nothing is called.
	Logger func(s *S, l *slog.Logger)
}

// Location is what a URL says between its user and its parameters.
type Location struct {
	// Scheme is one of the backend's, in lower case. Empty, from Format: the backend's name.
	Scheme string
	// Host is what comes before the first slash, as it was written.
	Host string
	// Path begins with that slash, unless a Kind has Paths. Its escapes are resolved.
	Path string
}

// Report takes an error about one setting, by its name in the section. A nil error is none. The error must not repeat
// the value, which may be a secret in the wrong place.
type Report func(setting string, err error)

// kind is a registered Kind, for settings of any type: its functions take the Config that they are in.
type kind struct {
	Kind[Config] // Schemes has the name, too, as the first
	name         string
	fields       []*field
	settings     func(c *Config) any     // a pointer into c
	onRedis      func(c *Config) onRedis // the same; nil: they are not for Redis
}

var registry struct {
	sync.Mutex
	kinds []*kind
}

// Register makes a backend available under a name, which is also a scheme of URLs. It is called from the init function
// of the backend's package. It panics if the name or a scheme is taken or unsuitable, if Open is nil, or if S has a
// field that cannot be a setting.
func Register[S any](name string, b Kind[S]) {
	register(name, b, func(c *Config) *S {
		switch s := c.Sections[name].(type) {
		case *S:
			return s
		case nil:
		default:
			panic(fmt.Sprintf("config: Sections[%q] is a %T, not a %T", name, s, new(S)))
		}
		if c.Sections == nil {
			c.Sections = make(Sections)
		}
		s := new(S)
		c.Sections[name] = s
		return s
	})
}

// register is Register for settings that are found by in.
func register[S any](name string, b Kind[S], in func(c *Config) *S) {
	k := &kind{name: name, settings: func(c *Config) any { return in(c) }}
	k.Schemes, k.InProcess, k.Paths = append([]string{name}, b.Schemes...), b.InProcess, b.Paths
	for _, s := range k.Schemes {
		if !schemeRE.MatchString(s) || kindOf(s) != nil || fieldAt(s) != nil || b.Open == nil {
			panic(fmt.Sprintf("config: backend %s: no Open, or the name or scheme %q is taken or unsuitable", name, s))
		}
	}
	k.fields = settingsOf[S](k)
	if _, ok := any(new(S)).(onRedis); ok {
		k.onRedis = func(c *Config) onRedis { return any(in(c)).(onRedis) }
	}
	secure := slices.ContainsFunc(k.Schemes, k.isSecure)
	if secure && !slices.ContainsFunc(k.fields, func(f *field) bool { return f.path == name+".tls" }) {
		panic("config: backend " + name + " has a scheme for TLS, and no settings for it")
	}
	k.Open = func(ctx context.Context, c *Config, prefix string) (*locker.Client, error) {
		return b.Open(ctx, in(c), prefix)
	}
	if b.Parse != nil {
		k.Parse = func(c *Config, at Location, report Report) { b.Parse(in(c), at, report) }
	}
	if b.Format != nil {
		k.Format = func(c *Config) Location { return b.Format(in(c)) }
	}
	if b.Check != nil {
		k.Check = func(c *Config, report Report) { b.Check(in(c), report) }
	}
	if b.Credentials != nil {
		k.Credentials = func(c *Config, f Credentials) { b.Credentials(in(c), f) }
	}
	if b.Logger != nil {
		k.Logger = func(c *Config, l *slog.Logger) { b.Logger(in(c), l) }
	}
	registry.Lock()
	defer registry.Unlock()
	registry.kinds = append(registry.kinds, k)
}

func kinds() []*kind {
	registry.Lock()
	defer registry.Unlock()
	return slices.Clone(registry.kinds)
}

// backendNames returns the names of the registered backends, in the order of their registration.
func backendNames() (names []string) {
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

// backend returns the kind with the given name, or nil.
func backend(name string) *kind {
	if k := kindOf(name); k != nil && k.name == name {
		return k
	}
	return nil
}

// kindOf returns the kind that a scheme belongs to, or nil.
func kindOf(scheme string) *kind {
	for _, k := range kinds() {
		if slices.Contains(k.Schemes, scheme) {
			return k
		}
	}
	return nil
}

// field returns the setting of the given name, or nil.
func (k *kind) field(name string) *field { return fieldAt(k.name + "." + name) }

// hasList says whether a URL has several hosts.
func (k *kind) hasList() bool { return slices.ContainsFunc(k.fields, (*field).isList) }

// secure returns the scheme that means TLS instead of the given one, or "".
func (k *kind) secure(scheme string) string {
	name, rest, plus := strings.Cut(scheme, "+")
	if name += "s"; plus {
		name += "+" + rest
	}
	if slices.Contains(k.Schemes, name) {
		return name
	}
	return ""
}

// isSecure reports whether a scheme means TLS.
func (k *kind) isSecure(scheme string) bool {
	return slices.ContainsFunc(k.Schemes, func(s string) bool { return k.secure(s) == scheme })
}

func init() {
	Register("memory", Kind[struct{}]{
		InProcess: true,
		Open: func(_ context.Context, _ *struct{}, prefix string) (*locker.Client, error) {
			return locker.NewClient(memoryStore(prefix)), nil
		},
	})
}

var stores struct {
	sync.Mutex
	byPrefix map[string]*memory.Backend
}

// memoryStore returns the process's store for prefix. Two parts of a program that both ask for "memory:" exclude each
// other, as they would on Redis.
func memoryStore(prefix string) *memory.Backend {
	stores.Lock()
	defer stores.Unlock()
	if stores.byPrefix == nil {
		stores.byPrefix = make(map[string]*memory.Backend)
	}
	s, ok := stores.byPrefix[prefix]
	if !ok {
		s = memory.NewBackend()
		stores.byPrefix[prefix] = s
	}
	return s
}
