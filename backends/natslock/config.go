package natslock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

// Config is the section nats, of URLs such as nats://user:password@h1:4222,h2:4222?bucket=locks, and of
// LOCKER_NATS_ADDRS and so on.
type Config struct {
	// Addrs are addresses of servers of one cluster. The port is 4222 if not given.
	Addrs config.Addrs `yaml:"addrs,omitempty" json:"addrs,omitempty" url:"-"`
	// Username and Password, or the content of PasswordFile without its trailing newline, authenticate the connection.
	// Instead of these, CredentialsFile is what nsc or an operator has issued. The files are read for each connection, as
	// config.Config.Credentials is called for each.
	Username        string        `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	Password        config.Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile    string        `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	CredentialsFile string        `yaml:"credentials_file,omitempty" json:"credentials_file,omitempty"`
	// TLS encrypts the connection.
	TLS *config.TLS `yaml:"tls,omitempty" json:"tls,omitempty"`
	// Bucket is the name of the bucket; see [Bucket].
	Bucket string `yaml:"bucket,omitempty" json:"bucket,omitempty"`
	// Replicas is how many servers keep the bucket if it is created, and at least otherwise; see [Replicas]. Zero means 1.
	Replicas int `yaml:"replicas,omitempty" json:"replicas,omitempty"`
	// Domain is the JetStream domain. Empty: that of the server.
	Domain string `yaml:"domain,omitempty" json:"domain,omitempty"`
	// Timeout bounds one exchange with the server; see [Timeout]. Zero: 5 s.
	Timeout config.Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`

	credentials config.Credentials `yaml:"-" json:"-"` // those of the program; nil if there are none
}

func init() {
	config.Register("nats", config.Kind[Config]{
		Schemes: []string{"natss"},
		Parse: func(s *Config, at config.Location, report config.Report) {
			if at.Host != "" {
				s.Addrs = strings.Split(at.Host, ",")
			}
			if strings.Trim(at.Path, "/") != "" {
				report("addrs", errors.New("a URL has no path: give the bucket as in nats://host:4222?bucket=locks"))
			}
		},
		Format:      func(s *Config) config.Location { return config.Location{Host: s.Addrs.String()} },
		Check:       (*Config).check,
		Credentials: func(s *Config, f config.Credentials) { s.credentials = f },
		Open: func(_ context.Context, s *Config, prefix string) (*locker.Client, error) {
			return s.open(prefix)
		},
	})
}

func (s *Config) check(report config.Report) {
	if len(s.Addrs) == 0 {
		report("addrs", errors.New("missing: write host:4222, and others after commas"))
	}
	if s.Bucket != "" && !bucketRE.MatchString(s.Bucket) {
		report("bucket", errors.New("letters, digits, _ and - are expected"))
	}
	if s.Replicas > 5 {
		report("replicas", errors.New("at most 5"))
	}
	switch password := s.Password != "" || s.PasswordFile != ""; {
	case s.CredentialsFile != "" && (s.Username != "" || password):
		report("credentials_file", errors.New("there is a user, too: remove one of them"))
	case s.Password != "" && s.PasswordFile != "":
		report("password_file", errors.New("there is a password, too: remove one of them"))
	case s.Username == "" && password:
		report("username", errors.New("missing, although there is a password"))
	case s.Username != "" && !password:
		report("password", errors.New("missing, although there is a username: give it, or a password_file"))
	}
	s.TLS.Check(report)
}

// How a connection notices that a server hangs, and how soon it tries again.
const (
	pingInterval  = 2 * time.Second
	maxPings      = 2
	reconnectWait = 100 * time.Millisecond
	dialTimeout   = 2 * time.Second
	flushTimeout  = 2 * time.Second
)

// open makes the connection, with more options. If no server answers, it goes on to try in the background.
func (s *Config) open(prefix string, more ...natsclient.Option) (*locker.Client, error) {
	servers := make([]string, len(s.Addrs))
	for i, addr := range s.Addrs {
		servers[i] = "nats://" + addr
	}
	opts := []natsclient.Option{
		natsclient.Name("locker"), natsclient.MaxReconnects(-1), natsclient.RetryOnFailedConnect(true),
		natsclient.IgnoreAuthErrorAbort(), // a user who is refused may be let in again
		natsclient.ReconnectWait(reconnectWait), natsclient.ReconnectJitter(reconnectWait, reconnectWait),
		natsclient.ReconnectBufSize(-1), natsclient.PingInterval(pingInterval), natsclient.MaxPingsOutstanding(maxPings),
		natsclient.Timeout(dialTimeout), natsclient.FlusherTimeout(flushTimeout),
		// Without a handler, the client prints errors such as a refused subscription.
		natsclient.ErrorHandler(func(*natsclient.Conn, *natsclient.Subscription, error) {}),
	}
	faults := new(loginFault)
	login, err := s.login(faults)
	if err != nil {
		return nil, err
	}
	secure, err := s.secure()
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	opts = slices.Concat(opts, login, secure, more)
	dial := func() (jetstream.JetStream, error) {
		conn, err := natsclient.Connect(strings.Join(servers, ","), opts...)
		if err != nil {
			return nil, fmt.Errorf("nats: %w", err)
		}
		var js jetstream.JetStream
		if s.Domain != "" {
			js, err = jetstream.NewWithDomain(conn, s.Domain)
		} else {
			js, err = jetstream.New(conn)
		}
		if err != nil {
			conn.Close()
			return nil, fmt.Errorf("nats: %w", err)
		}
		return js, nil
	}
	js, err := dial()
	if err != nil {
		return nil, err
	}
	b := newBackend(js, Prefix(prefix), Timeout(time.Duration(s.Timeout)))
	if s.Bucket != "" {
		b.name = s.Bucket
	}
	if s.Replicas > 0 {
		b.replicas = s.Replicas
	}
	b.dial, b.login = dial, faults
	b.reach.leave = b.reconnect
	return locker.NewClient(b), nil
}

// loginFault is why there are no credentials for a connection.
type loginFault struct{ err atomic.Pointer[error] }

// get returns the error of the function for credentials when it was called last. It may be called on nil.
func (f *loginFault) get() error {
	if f == nil {
		return nil
	}
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

// login returns the options for the user. faults is told of errors of the program's function for credentials.
func (s *Config) login(faults *loginFault) (opts []natsclient.Option, err error) {
	switch {
	case s.credentials != nil && s.CredentialsFile != "":
		return nil, errors.New("nats.credentials_file: there is a function for credentials, too: remove one of them")
	case s.credentials != nil:
		return []natsclient.Option{
			natsclient.UserInfoHandler(func() (string, string) {
				user, password, err := s.ask()
				if err != nil {
					err = fmt.Errorf("credentials: %w", err)
				}
				faults.err.Store(&err)
				return user, password
			}),
			// The handler above cannot fail. The client asks for a token of the user after it, and gives up the connection
			// if there is an error.
			natsclient.UserJWT(func() (string, error) { return "", faults.get() },
				func([]byte) ([]byte, error) { return nil, nil }),
		}, nil
	case s.CredentialsFile != "":
		if _, err := os.Stat(s.CredentialsFile); err != nil {
			return nil, fmt.Errorf("nats.credentials_file: %w", err)
		}
		return []natsclient.Option{natsclient.UserCredentials(s.CredentialsFile)}, nil
	case s.PasswordFile != "":
		password, err := config.PasswordFile(s.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("nats.password_file: %w", err)
		}
		return []natsclient.Option{natsclient.UserInfoHandler(func() (string, string) {
			return s.Username, password()
		})}, nil
	case s.Username != "":
		return []natsclient.Option{natsclient.UserInfo(s.Username, s.Password.Reveal())}, nil
	}
	return nil, nil
}

// ask calls the program's function for credentials. The client library holds a mutex meanwhile, so a call is given up
// that takes longer than it may take to connect. Its goroutine ends when the function does.
func (s *Config) ask() (user, password string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	done := make(chan struct{})
	var u, p string
	var failed error
	go func() {
		defer close(done)
		u, p, failed = s.credentials(ctx)
	}()
	select {
	case <-done:
		return u, p, failed
	case <-ctx.Done():
		return "", "", ctx.Err()
	}
}

// secure returns the options for TLS. The files are read again for each connection.
func (s *Config) secure() (opts []natsclient.Option, err error) {
	get, err := s.TLS.Configs()
	if get == nil {
		return nil, err
	}
	now := get()
	var cert natsclient.TLSCertHandler
	if len(now.Certificates) > 0 {
		cert = func() (tls.Certificate, error) { return get().Certificates[0], nil }
	}
	roots := func() (*x509.CertPool, error) { return get().RootCAs, nil }
	return []natsclient.Option{
		natsclient.Secure(&tls.Config{ServerName: now.ServerName, MinVersion: now.MinVersion}),
		natsclient.ClientTLSConfig(cert, roots),
	}, nil
}
