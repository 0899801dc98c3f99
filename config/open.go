package config

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
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

// Open validates c and returns the Locker it describes. It reads the files that c names. A server that is down shows when
// a lock is asked for, not here: Open sends nothing.
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
	switch c.Backend {
	case backendMemory:
		l = locker.NewClient(memoryStore(prefix))
	case backendRedis:
		s, errs := c.Redis.open(ctx, func(name string) string { return "redis." + name })
		if errs != nil {
			return nil, errors.Join(errs...)
		}
		fifo := c.Redis.FIFO == nil || *c.Redis.FIFO
		l = single.New(s.Driver, single.Prefix(prefix), single.Name(s.Name),
			single.Timeout(time.Duration(c.Redis.Timeout)), single.FIFO(fifo))
	case backendRedlock:
		var err error
		if l, err = c.Redlock.open(ctx, prefix); err != nil {
			return nil, err
		}
	}
	if c.TTL != 0 {
		opts = append(opts[:len(opts):len(opts)], locker.TTL(time.Duration(c.TTL)))
	}
	return c.wrap(l, opts), nil
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

// open reads the files that r names and opens its driver. The server's name is its address. path is where the setting of the
// given name is found, for errors.
func (r *Redis) open(ctx context.Context, path func(name string) string) (s Server, problems []error) {
	report := func(name string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("config: %s: %w", path(name), err))
		}
	}
	network, addr, err := r.address()
	report("addr", err)
	password, err := r.password()
	report("password_file", err)
	tlsConfig := r.TLS.config(addr, report)
	if problems != nil {
		return Server{}, problems
	}
	dial := drivers.Config{Network: network, Addr: addr, TLS: tlsConfig, Timeout: time.Duration(r.Timeout)}
	c := dial
	c.Username, c.Password, c.DB = r.Username, password, r.DB
	d, err := drivers.Open(ctx, r.Driver, c)
	report("driver", err)
	if err != nil {
		return Server{}, problems
	}
	return Server{Name: addr, Username: r.Username, Driver: d, Dial: dial}, nil
}

func (r *Redis) password() (string, error) {
	if r.PasswordFile == "" {
		return r.Password.Reveal(), nil
	}
	data, err := readFile(r.PasswordFile)
	if err != nil {
		return "", err
	}
	password := strings.TrimRight(string(data), "\r\n")
	if password == "" {
		return "", fmt.Errorf("%s is empty", r.PasswordFile)
	}
	return password, nil
}

// config returns what t means for connections to addr; nil for nil.
func (t *TLS) config(addr string, report func(name string, err error)) *tls.Config {
	if t == nil {
		return nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(addr)
	}
	if t.CAFile != "" {
		pem, err := readFile(t.CAFile)
		c.RootCAs = x509.NewCertPool()
		switch {
		case err != nil:
			report("tls.ca_file", err)
		case !c.RootCAs.AppendCertsFromPEM(pem):
			report("tls.ca_file", fmt.Errorf("no PEM certificate in %s", t.CAFile))
		}
	}
	if t.CertFile != "" {
		cert, err := keyPair(t.CertFile, t.KeyFile)
		report("tls.cert_file, key_file", err)
		c.Certificates = []tls.Certificate{cert}
	}
	return c
}

func keyPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := readFile(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := readFile(keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return pair, fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	return pair, nil
}

// fileError is a failure to read a file, in words for the operator.
type fileError struct {
	text string
	err  error
}

func (e *fileError) Error() string { return e.text }
func (e *fileError) Unwrap() error { return e.err }

func readFile(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	switch {
	case err == nil:
		return data, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, &fileError{"file not found: " + path, err}
	case errors.Is(err, fs.ErrPermission):
		return nil, &fileError{"no permission to read " + path, err}
	}
	return nil, err
}
