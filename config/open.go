package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/single"
)

// Opened is the Locker that a configuration describes. Close it when no lock is needed any more.
type Opened struct {
	locker.Locker // with all middleware
	client        *locker.Client
	inProcess     bool
}

// Close implements io.Closer. If the store does not answer, it takes up to the timeout of the configuration, 5 s by
// default, and a second more. It does not release locks: see [locker.Client.Close].
func (o *Opened) Close() error { return o.client.Close() }

// Unwrap lets [locker.As] find the optional interfaces behind o.
func (o *Opened) Unwrap() locker.Locker { return o.Locker }

// TryLockMany implements [locker.ManyLocker].
func (o *Opened) TryLockMany(ctx context.Context, keys []string, opts ...locker.Option) ([]locker.Lease, error) {
	return locker.TryLockMany(ctx, o.Locker, keys, opts...)
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
// opts are the program's defaults for all calls. TTL, Patience and Label in c override them, and options of a call
// override both.
func (c *Config) Open(ctx context.Context, opts ...locker.Option) (*Opened, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	own, k := c.opening(), backend(c.Backend)
	if err := own.readFiles(k); err != nil {
		return nil, err
	}
	client, err := k.Open(ctx, own, own.prefix())
	if err != nil {
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
	return &Opened{own.wrap(client, opts), client, k.InProcess}, nil
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
