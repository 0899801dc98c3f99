package config

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
	"github.com/golocker/locker/memory"
	"github.com/golocker/locker/single"
)

// Open returns the Locker that a URL describes; see [Parse] for what it reports and [Config.Open] for the rest.
func Open(ctx context.Context, url string, opts ...locker.Option) (locker.Locker, error) {
	c, err := Parse(url)
	if err != nil {
		return nil, err
	}
	return c.Open(ctx, opts...)
}

// Open validates c and returns the Locker it describes. It reads the files that c names, and sends nothing: a server that
// is down shows when a lock is asked for.
//
// opts are the program's defaults for all calls. A TTL in c wins over them, and an option of the call over both.
//
// The Locker is an io.Closer, which [locker.As] finds. Close it when no lock is needed any more.
func (c *Config) Open(ctx context.Context, opts ...locker.Option) (locker.Locker, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	prefix := single.DefaultPrefix
	if c.Prefix != nil {
		prefix = *c.Prefix
	}
	var l locker.Locker
	if c.Backend == backendMemory {
		l = locker.NewClient(memoryStore(prefix))
	} else {
		d, name, err := c.Redis.open(ctx)
		if err != nil {
			return nil, err
		}
		l = single.New(d, single.Prefix(prefix), single.Name(name), single.Timeout(time.Duration(c.Redis.Timeout)))
	}
	if c.TTL != 0 {
		opts = append(opts[:len(opts):len(opts)], locker.TTL(time.Duration(c.TTL)))
	}
	if len(opts) > 0 {
		l = locker.Wrap(l, locker.Defaults(opts...))
	}
	return l, nil
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

// open reads the files that r names and opens its driver. The name is what errors are to call the server.
func (r *Redis) open(ctx context.Context) (d drivers.Driver, name string, err error) {
	network, addr, err := r.address()
	if err != nil {
		return nil, "", fmt.Errorf("config: redis.addr: %w", err)
	}
	password, perr := r.password()
	tlsConfig, terr := r.TLS.config(addr)
	if err := errors.Join(perr, terr); err != nil {
		return nil, "", err
	}
	d, err = drivers.Open(ctx, r.Driver, drivers.Config{
		Network:  network,
		Addr:     addr,
		Username: r.Username,
		Password: password,
		DB:       r.DB,
		TLS:      tlsConfig,
		Timeout:  time.Duration(r.Timeout),
	})
	if err != nil {
		return nil, "", fmt.Errorf("config: redis: %w", err)
	}
	return d, addr, nil
}

func (r *Redis) password() (string, error) {
	if r.PasswordFile == "" {
		return r.Password.Reveal(), nil
	}
	data, err := os.ReadFile(r.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("config: redis.password_file: %w", err)
	}
	password := strings.TrimRight(string(data), "\r\n")
	if password == "" {
		return "", fmt.Errorf("config: redis.password_file: %s is empty", r.PasswordFile)
	}
	return password, nil
}

// config returns what t means for connections to addr; nil for nil.
func (t *TLS) config(addr string) (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(addr)
	}
	var problems []error
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		c.RootCAs = x509.NewCertPool()
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("config: redis.tls.ca_file: %w", err))
		case !c.RootCAs.AppendCertsFromPEM(pem):
			problems = append(problems, fmt.Errorf("config: redis.tls.ca_file: there is no PEM certificate in %s", t.CAFile))
		}
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			problems = append(problems, fmt.Errorf("config: redis.tls.cert_file, key_file: %w", err))
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, errors.Join(problems...)
}
