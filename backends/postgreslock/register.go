package postgreslock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

// Config is the section postgres, of URLs such as postgres://user:password@h1:5432,h2/app?sslmode=require,
// and of LOCKER_POSTGRES_HOST and so on. A setting that has the name of a parameter of pgx is passed on to pgx. What is
// not given comes from PostgreSQL's own variables, such as PGHOST and PGSSLMODE, as pgx reads them.
type Config struct {
	// Host is the host, host:port or directory of the server's socket, or several with commas between them.
	Host string `yaml:"host,omitempty" json:"host,omitempty"`
	// Database is the name of the database.
	Database string `yaml:"database,omitempty" json:"database,omitempty" url:"-"`
	// Username, with Password or the content of PasswordFile without its trailing newline, authenticates. The file is
	// read for every new connection, so that it can be replaced while the program runs; see [config.PasswordFile].
	Username     string        `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	Password     config.Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string        `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	// SSLMode, SSLRootCert, SSLCert and SSLKey are PostgreSQL's settings for TLS. The files are read for every new
	// connection, so that they can be replaced while the program runs; see [config.TLS]. The key is not encrypted.
	SSLMode     string `yaml:"sslmode,omitempty" json:"sslmode,omitempty"`
	SSLRootCert string `yaml:"sslrootcert,omitempty" json:"sslrootcert,omitempty"`
	SSLCert     string `yaml:"sslcert,omitempty" json:"sslcert,omitempty"`
	SSLKey      string `yaml:"sslkey,omitempty" json:"sslkey,omitempty"`
	// TargetSessionAttrs says which servers will do: read-write, primary or any. If it is empty, it is read-write.
	TargetSessionAttrs string `yaml:"target_session_attrs,omitempty" json:"target_session_attrs,omitempty"`
	// ApplicationName is what pg_stat_activity shows. Empty: locker.
	ApplicationName string `yaml:"application_name,omitempty" json:"application_name,omitempty"`
	// QueryExecMode is how pgx sends requests. Behind a PgBouncer that shares connections between transactions, it is
	// exec. Empty: cache_statement.
	QueryExecMode string `yaml:"default_query_exec_mode,omitempty" json:"default_query_exec_mode,omitempty"`
	// MaxConns is how many connections there are at most, not counting one for notifications. Zero: as pgx chooses.
	MaxConns int `yaml:"pool_max_conns,omitempty" json:"pool_max_conns,omitempty" min:"1"`
	// Schema is the schema of the tables. Empty: [DefaultSchema].
	Schema string `yaml:"schema,omitempty" json:"schema,omitempty"`
	// Timeout bounds connecting and one request. Zero: [DefaultTimeout].
	Timeout config.Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`

	// credentials are those of the program. If they are nil, Username and so on are used.
	credentials config.Credentials `yaml:"-" json:"-"`
}

func init() {
	config.Register("postgres", config.Kind[Config]{
		Schemes: []string{"postgresql"},
		Parse: func(s *Config, at config.Location, _ config.Report) {
			s.Host, s.Database = at.Host, strings.TrimPrefix(at.Path, "/")
		},
		Format:      (*Config).format,
		Check:       (*Config).check,
		Credentials: func(s *Config, f config.Credentials) { s.credentials = f },
		Open: func(ctx context.Context, s *Config, prefix string) (*locker.Client, error) {
			pool, err := s.Pool(ctx)
			if err != nil {
				return nil, err
			}
			return New(pool, Prefix(prefix), Schema(s.SchemaName()), Timeout(time.Duration(s.Timeout)), owned), nil
		},
	})
}

func (s *Config) format() config.Location {
	at := config.Location{Path: "/" + s.Database}
	if !strings.ContainsAny(s.Host, "/@?#") {
		at.Host, s.Host = s.Host, ""
	}
	return at
}

func (s *Config) check(report config.Report) {
	oneOf := func(name, value string, known ...string) {
		if value != "" && !slices.Contains(known, value) {
			report(name, errors.New("unknown: it is one of "+strings.Join(known, ", ")))
		}
	}
	report("host", checkHosts(s.Host))
	oneOf("sslmode", s.SSLMode, "disable", "allow", "prefer", "require", "verify-ca", "verify-full")
	oneOf("target_session_attrs", s.TargetSessionAttrs, "read-write", "primary", "any")
	oneOf("default_query_exec_mode", s.QueryExecMode, "cache_statement", "cache_describe", "describe_exec", "exec",
		"simple_protocol")
	if s.Password != "" && s.PasswordFile != "" {
		report("password_file", errors.New("there is a password, too: remove one of them"))
	}
	if s.Schema != "" && !schemaName.MatchString(s.Schema) {
		report("schema", errSchema)
	}
}

// checkHosts checks hosts with commas between them, some of which may be directories of sockets. None is given if
// PGHOST, or the socket of this machine, is meant.
func checkHosts(hosts string) error {
	if hosts == "" {
		return nil
	}
	all := strings.Split(hosts, ",")
	for i, host := range all {
		if strings.HasPrefix(host, "/") {
			continue
		}
		switch err := config.CheckAddr(host); {
		case err != nil && strings.ContainsAny(host, "; "):
			return errors.New("separated by something else than commas: write h1,h2")
		case err != nil && len(all) > 1:
			return fmt.Errorf("number %d: %w", i+1, err)
		case err != nil:
			return err
		}
	}
	return nil
}

// SchemaName returns the schema of the tables.
func (s *Config) SchemaName() string {
	if s.Schema == "" {
		return DefaultSchema
	}
	return s.Schema
}

// Pool returns the connections that s describes. It asks no server. The caller closes it.
func (s *Config) Pool(ctx context.Context) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(s.url())
	if err != nil {
		return nil, fmt.Errorf("config: postgres: %w", err)
	}
	if s.MaxConns > 0 {
		c.MaxConns = int32(s.MaxConns)
	}
	cc := c.ConnConfig
	if cc.ConnectTimeout = time.Duration(s.Timeout); s.Timeout == 0 {
		cc.ConnectTimeout = DefaultTimeout
	}
	if s.TargetSessionAttrs == "" || s.TargetSessionAttrs == "read-write" {
		cc.ValidateConnect = writable
	}
	if cc.RuntimeParams["application_name"] == "" {
		cc.RuntimeParams["application_name"] = "locker"
	}
	cc.RuntimeParams["client_encoding"] = "UTF8" // of labels; the user may have another default
	if c.BeforeConnect, err = s.beforeConnect(cc); err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, c)
}

// writable refuses a connection to a server that takes no writes, such as a standby. pgx then tries another address.
func writable(ctx context.Context, conn *pgconn.PgConn) error {
	err := pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, conn)
	if err != nil && !conn.IsClosed() {
		return &pgconn.PgError{Severity: "ERROR", Code: "25006", Message: "the server takes no writes"}
	}
	return err
}

// beforeConnect returns a function that reads passwords, certificates and keys for each new connection, which may have
// been replaced meanwhile. cc says whether connections have TLS.
func (s *Config) beforeConnect(cc *pgx.ConnConfig) (func(ctx context.Context, cc *pgx.ConnConfig) error, error) {
	login := s.credentials
	if s.PasswordFile != "" {
		read, err := config.PasswordFile(s.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("config: postgres.password_file: %w", err)
		}
		login = func(context.Context) (username, password string, err error) { return s.Username, read(), nil }
	}
	files := func() *tls.Config { return nil }
	if slices.ContainsFunc(encryptions(cc), func(c *tls.Config) bool { return c != nil }) {
		t := config.TLS{CAFile: s.SSLRootCert, CertFile: s.SSLCert, KeyFile: s.SSLKey}
		if t.CAFile == "system" {
			t.CAFile = ""
		}
		var err error
		if files, err = t.Configs(); err != nil {
			return nil, fmt.Errorf("config: postgres: %w", err)
		}
	}
	return func(ctx context.Context, cc *pgx.ConnConfig) error {
		if login != nil {
			username, password, err := login(ctx)
			if err != nil {
				return err
			}
			if cc.Password = password; username != "" {
				cc.User = username
			}
		}
		read := files()
		for _, c := range encryptions(cc) {
			if c != nil {
				refresh(c, read)
			}
		}
		return nil
	}, nil
}

// encryptions returns the settings of TLS for each way to connect that pgx tries. One that is nil means none.
func encryptions(cc *pgx.ConnConfig) []*tls.Config {
	all := []*tls.Config{cc.TLSConfig}
	for _, f := range cc.Fallbacks {
		all = append(all, f.TLSConfig)
	}
	return all
}

// refresh puts what was read from files into settings that pgx has made of the same files.
func refresh(c, read *tls.Config) {
	if read.Certificates != nil {
		c.Certificates = read.Certificates
	}
	if read.RootCAs == nil {
		return
	}
	c.RootCAs = read.RootCAs
	if c.VerifyPeerCertificate == nil {
		return
	}
	// It is that of verify-ca, and uses the authorities that pgx has read.
	c.VerifyPeerCertificate = nil
	c.VerifyConnection = func(state tls.ConnectionState) error {
		opts := x509.VerifyOptions{Roots: read.RootCAs, Intermediates: x509.NewCertPool()}
		for _, between := range state.PeerCertificates[1:] {
			opts.Intermediates.AddCert(between)
		}
		_, err := state.PeerCertificates[0].Verify(opts)
		return err
	}
}

// url returns the URL that pgx reads.
func (s *Config) url() string {
	u := url.URL{Scheme: "postgres", Path: "/" + s.Database}
	if s.Username != "" || s.Password != "" {
		u.User = url.UserPassword(s.Username, s.Password.Reveal())
	}
	params := url.Values{}
	for name, value := range map[string]string{
		"sslmode": s.SSLMode, "sslrootcert": s.SSLRootCert, "sslcert": s.SSLCert, "sslkey": s.SSLKey,
		"target_session_attrs": s.TargetSessionAttrs, "application_name": s.ApplicationName,
		"default_query_exec_mode": s.QueryExecMode,
	} {
		if value != "" {
			params.Set(name, value)
		}
	}
	if strings.Contains(s.Host, "/") {
		params.Set("host", s.Host)
	} else {
		u.Host = s.Host
	}
	u.RawQuery = params.Encode()
	return u.String()
}
