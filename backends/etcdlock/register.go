package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

// Config is the section etcd, of URLs such as etcd://user:password@h1,h2,h3?timeout=2s, and of variables
// such as LOCKER_ETCD_ENDPOINTS. URLs that begin with etcds:// use TLS.
type Config struct {
	// Endpoints are the addresses of members, each host or host:port. The port is 2379 if not given.
	Endpoints config.Addrs `yaml:"endpoints" json:"endpoints" url:"-"`
	// Username and Password, or the content of PasswordFile without its trailing newline, authenticate. The file is read
	// again for each login, so that it can be replaced while the program runs. While it cannot be read then, or is empty,
	// logins use what it contained before.
	Username     string        `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	Password     config.Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string        `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	// Timeout bounds one request; see Timeout. Zero: DefaultTimeout.
	Timeout config.Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`
	// TLS encrypts the connections. Nil: plain.
	TLS *config.TLS `yaml:"tls,omitempty" json:"tls,omitempty" url:"-"`

	credentials config.Credentials `yaml:"-" json:"-"` // see config.Config.Credentials
	logger      *slog.Logger       `yaml:"-" json:"-"` // see config.Config.Logger
}

func init() {
	config.Register("etcd", config.Kind[Config]{
		Schemes: []string{"etcds"},
		Parse: func(s *Config, at config.Location, report config.Report) {
			if at.Path != "" && at.Path != "/" {
				report("endpoints", errors.New("a path is not expected after the addresses: write ?prefix= for a prefix"))
			}
			if at.Host != "" {
				s.Endpoints = strings.Split(at.Host, ",")
			}
		},
		Format:      func(s *Config) config.Location { return config.Location{Host: s.Endpoints.String()} },
		Check:       (*Config).check,
		Credentials: func(s *Config, f config.Credentials) { s.credentials = f },
		Logger:      func(s *Config, l *slog.Logger) { s.logger = l },
		Open: func(_ context.Context, s *Config, prefix string) (*locker.Client, error) {
			b, err := s.open(Prefix(prefix))
			if err != nil {
				return nil, err
			}
			return locker.NewClient(b), nil
		},
	})
}

func (s *Config) check(report config.Report) {
	if len(s.Endpoints) == 0 {
		report("endpoints", errors.New("missing: write host:2379, and others after commas"))
	}
	switch {
	case s.Password != "" && s.PasswordFile != "":
		report("password_file", errors.New("there is a password, too: remove one of them"))
	case s.Username == "" && (s.Password != "" || s.PasswordFile != ""):
		report("username", errors.New("missing, although there is a password"))
	case s.Username != "" && s.Password == "" && s.PasswordFile == "":
		report("password", errors.New("missing, although there is a username: give it, or a password_file"))
	}
	s.TLS.Check(report)
}

const (
	// probeAfter is the shortest time that gRPC allows. So its keep-alive notices a dead connection after eleven seconds,
	// and those of a client that is opened here are examined before that: see connections. On Linux, gRPC also gives up a
	// connection whose peer does not confirm for probeTimeout that something has arrived.
	probeAfter   = 10 * time.Second
	probeTimeout = time.Second

	// maxReconnect bounds the pause before another attempt to connect, and the attempt itself. The default of gRPC is two
	// minutes in the end.
	maxReconnect = 2 * time.Second
)

// open makes a client and a backend that owns it. It reads files, and waits for nobody.
func (s *Config) open(opts ...Option) (*store, error) {
	own := transport{all: new(connections)}
	scheme := "http://"
	if s.TLS != nil {
		scheme = "https://"
		var err error
		if own.settings, err = s.TLS.Configs(); err != nil {
			return nil, fmt.Errorf("etcd.%w", err)
		}
	}
	c := clientv3.Config{
		Logger: zap.NewNop(), DialKeepAliveTime: probeAfter, DialKeepAliveTimeout: probeTimeout,
		MaxUnaryRetries: 1, // it would repeat requests whose token has ended, with the same token: see conn
		DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: backoff.Config{
					BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnect,
				},
				MinConnectTimeout: maxReconnect,
			}),
			grpc.WithTransportCredentials(own),
		},
	}
	login, err := s.login()
	if err != nil {
		return nil, err
	}
	var user *logins
	if login != nil {
		user = newLogins(login)
		c.DialOptions = append(c.DialOptions, grpc.WithPerRPCCredentials(user))
	}
	for _, e := range s.Endpoints {
		c.Endpoints = append(c.Endpoints, scheme+withPort(e))
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return newBackend(client, append(opts, Timeout(time.Duration(s.Timeout)), Logger(s.logger), func(b *store) {
		b.owned, b.logins, b.connections = true, user, own.all
	})...), nil
}

// login returns the function that gives the user and the password for a login, or nil if there is no user.
func (s *Config) login() (config.Credentials, error) {
	switch {
	case s.credentials != nil || s.Username == "":
		return s.credentials, nil
	case s.PasswordFile == "":
		return func(context.Context) (string, string, error) { return s.Username, s.Password.Reveal(), nil }, nil
	}
	password, err := config.PasswordFile(s.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("etcd.password_file: %w", err)
	}
	return func(context.Context) (string, string, error) { return s.Username, password(), nil }, nil
}

// withPort returns addr with the port of etcd if it has none. Addresses of IPv6 are in brackets.
func withPort(addr string) string {
	if strings.LastIndexByte(addr, ':') > strings.LastIndexByte(addr, ']') {
		return addr
	}
	return addr + ":2379"
}
