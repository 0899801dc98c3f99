package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

// Settings are those of the section etcd, of URLs such as etcd://user:password@h1,h2,h3?timeout=2s, and of variables
// such as LOCKER_ETCD_ENDPOINTS. URLs that begin with etcds:// use TLS.
type Settings struct {
	// Endpoints are the addresses of members, each host or host:port. The port is 2379 if not given.
	Endpoints config.Addrs `yaml:"endpoints" json:"endpoints" url:"-"`
	// Username and Password, or the content of PasswordFile without its trailing newline, authenticate.
	Username     string        `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	Password     config.Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string        `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	// Timeout bounds one request; see Timeout. Zero: DefaultTimeout.
	Timeout config.Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`
	// TLS encrypts the connections. Nil: plain.
	TLS *config.TLS `yaml:"tls,omitempty" json:"tls,omitempty" url:"-"`
}

func init() {
	config.Register("etcd", config.Backend[Settings]{
		Schemes: []string{"etcds"},
		Parse: func(s *Settings, at config.Location, report config.Report) {
			if at.Path != "" && at.Path != "/" {
				report("endpoints", errors.New("a path is not expected after the addresses: write ?prefix= for a prefix"))
			}
			if at.Host != "" {
				s.Endpoints = strings.Split(at.Host, ",")
			}
		},
		Format: func(s *Settings) config.Location { return config.Location{Host: s.Endpoints.String()} },
		Check:  (*Settings).check,
		Open: func(ctx context.Context, s *Settings, prefix string) (*locker.Client, error) {
			b, err := s.open(ctx, Prefix(prefix))
			if err != nil {
				return nil, err
			}
			return locker.NewClient(b), nil
		},
	})
}

func (s *Settings) check(report config.Report) {
	if len(s.Endpoints) == 0 {
		report("endpoints", errors.New("missing: write host:2379, and others after commas"))
	}
	for _, e := range s.Endpoints {
		if e == "" || strings.ContainsAny(e, "/@ ") {
			report("endpoints", errors.New("not host or host:port"))
		}
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

// The client notices within six seconds that a connection is dead, and tries at least every two seconds to make a new
// one. Without these settings, it would notice after many minutes, and in the end try only every two minutes. etcd does
// not allow a client to ask more often than every five seconds.
const (
	probeAfter   = 5 * time.Second
	probeTimeout = time.Second
	maxReconnect = 2 * time.Second
)

// open makes a client and a Backend that owns it. It waits for nobody, except that it logs in if there is a user.
func (s *Settings) open(ctx context.Context, opts ...Option) (*Backend, error) {
	c := clientv3.Config{
		Username: s.Username, Password: s.Password.Reveal(), Logger: zap.NewNop(),
		DialKeepAliveTime: probeAfter, DialKeepAliveTimeout: probeTimeout,
		DialTimeout: DefaultTimeout,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnect,
			},
			MinConnectTimeout: maxReconnect,
		})},
	}
	if s.PasswordFile != "" {
		text, err := os.ReadFile(s.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("etcd.password_file: %w", err)
		}
		c.Password = strings.TrimRight(string(text), "\r\n")
	}
	scheme := "http://"
	if s.TLS != nil {
		scheme = "https://"
		var err error
		if c.TLS, err = s.TLS.Config(); err != nil {
			return nil, fmt.Errorf("etcd.tls: %w", err)
		}
	}
	for _, e := range s.Endpoints {
		c.Endpoints = append(c.Endpoints, scheme+withPort(e))
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, unavailable(ctx, cause(c, err))
	}
	b := NewBackend(client, append(opts, Timeout(time.Duration(s.Timeout)))...)
	b.owned = true
	return b, nil
}

// cause returns why a client could not log in. The client tries until its DialTimeout is over, and tells only that.
func cause(c clientv3.Config, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	for _, e := range c.Endpoints {
		_, addr, _ := strings.Cut(e, "//")
		if failed := reach(addr, c.TLS); failed != nil {
			return failed
		}
	}
	return err
}

// reach connects to addr. With TLS it also waits whether the server refuses the certificate of the client. The server
// says that after the handshake.
func reach(addr string, config *tls.Config) error {
	conn, err := net.DialTimeout("tcp", addr, probeTimeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	if config == nil {
		return nil
	}
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(addr)
	}
	_ = conn.SetDeadline(time.Now().Add(probeTimeout))
	if _, err = tls.Client(conn, config).Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil // the server waits for a request
	}
	return err
}

// withPort returns addr with the port of etcd if it has none. Addresses of IPv6 are in brackets.
func withPort(addr string) string {
	if strings.LastIndexByte(addr, ':') > strings.LastIndexByte(addr, ']') {
		return addr
	}
	return addr + ":2379"
}
