package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
)

// Settings are those of the section postgres, of URLs such as postgres://user:password@h1:5432,h2/app?sslmode=require,
// and of LOCKER_POSTGRES_HOST and so on. A setting that has the name of a parameter of pgx is passed on to pgx. What is
// not given comes from PostgreSQL's own variables, such as PGHOST and PGSSLMODE, as pgx reads them.
type Settings struct {
	// Host is the host, host:port or directory of the server's socket, or several with commas between them.
	Host string `yaml:"host,omitempty" json:"host,omitempty"`
	// Database is the name of the database.
	Database string `yaml:"database,omitempty" json:"database,omitempty" url:"-"`
	// Username, with Password or the content of PasswordFile without its trailing newline, authenticates. The file is
	// read for every new connection, so that it can be replaced while the program runs.
	Username     string        `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	Password     config.Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string        `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	// SSLMode, SSLRootCert, SSLCert and SSLKey are PostgreSQL's settings for TLS.
	SSLMode     string `yaml:"sslmode,omitempty" json:"sslmode,omitempty"`
	SSLRootCert string `yaml:"sslrootcert,omitempty" json:"sslrootcert,omitempty"`
	SSLCert     string `yaml:"sslcert,omitempty" json:"sslcert,omitempty"`
	SSLKey      string `yaml:"sslkey,omitempty" json:"sslkey,omitempty"`
	// TargetSessionAttrs says which of several hosts will do. Empty: read-write.
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
	// Advisory makes locks of [NewAdvisory]: each lock takes a connection while it is held, and ends with it.
	Advisory bool `yaml:"advisory,omitempty" json:"advisory,omitempty"`
	// Timeout bounds connecting and one request. Zero: [DefaultTimeout].
	Timeout config.Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`
}

func init() {
	config.Register("postgres", config.Backend[Settings]{
		Schemes: []string{"postgresql"},
		Parse: func(s *Settings, at config.Location, _ config.Report) {
			s.Host, s.Database = at.Host, strings.TrimPrefix(at.Path, "/")
		},
		Format: (*Settings).format,
		Check:  (*Settings).check,
		Open: func(ctx context.Context, s *Settings, prefix string) (*locker.Client, error) {
			pool, err := s.Pool(ctx)
			if err != nil {
				return nil, err
			}
			opts := []Option{Prefix(prefix), Schema(s.SchemaName()), Timeout(time.Duration(s.Timeout)), owned}
			if s.Advisory {
				return NewAdvisory(pool, opts...), nil
			}
			return New(pool, opts...), nil
		},
	})
}

func (s *Settings) format() config.Location {
	at := config.Location{Path: "/" + s.Database}
	if !strings.ContainsAny(s.Host, "/@?#") {
		at.Host, s.Host = s.Host, ""
	}
	return at
}

var schemaName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

func (s *Settings) check(report config.Report) {
	oneOf := func(name, value string, known ...string) {
		if value != "" && !slices.Contains(known, value) {
			report(name, errors.New("unknown: it is one of "+strings.Join(known, ", ")))
		}
	}
	oneOf("sslmode", s.SSLMode, "disable", "allow", "prefer", "require", "verify-ca", "verify-full")
	oneOf("target_session_attrs", s.TargetSessionAttrs, "read-write", "primary", "any")
	oneOf("default_query_exec_mode", s.QueryExecMode, "cache_statement", "cache_describe", "describe_exec", "exec",
		"simple_protocol")
	if s.Password != "" && s.PasswordFile != "" {
		report("password_file", errors.New("there is a password, too: remove one of them"))
	}
	if s.Schema != "" && !schemaName.MatchString(s.Schema) {
		report("schema", errors.New("not a name of up to 63 letters, digits and underscores"))
	}
}

// SchemaName returns the schema of the tables.
func (s *Settings) SchemaName() string {
	if s.Schema == "" {
		return DefaultSchema
	}
	return s.Schema
}

// Pool returns the connections that s describes. It asks no server. The caller closes it.
func (s *Settings) Pool(ctx context.Context) (*pgxpool.Pool, error) {
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
	if s.TargetSessionAttrs == "" && len(cc.Fallbacks) > 0 {
		cc.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if cc.RuntimeParams["application_name"] == "" {
		cc.RuntimeParams["application_name"] = "locker"
	}
	if s.PasswordFile != "" {
		c.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
			password, err := os.ReadFile(s.PasswordFile)
			cc.Password = strings.TrimRight(string(password), "\r\n")
			return err
		}
	}
	return pgxpool.NewWithConfig(ctx, c)
}

// url returns the URL that pgx reads.
func (s *Settings) url() string {
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
