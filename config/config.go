package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/internal/label"
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
	// Log is the level from which on locks are logged: "debug", "info" or "warn". See package middleware/logging.
	// Empty: they are not.
	Log string `yaml:"log,omitempty" json:"log,omitempty"`
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
	// Sections are the settings of other backends by their names: of a Backend[S], a *S. See [Register].
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
	case k == nil && instead[c.Backend] == importOf(c.Backend):
		report("backend", fmt.Errorf("unknown backend %q: %s", c.Backend, importOf(c.Backend)))
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
