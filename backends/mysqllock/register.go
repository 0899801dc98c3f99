package mysqllock

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/golocker/locker"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/record"
)

// DefaultMaxConns is how many connections there are at most, unless the configuration says otherwise.
const DefaultMaxConns = 8

// maxLifetime is after how long a connection is replaced, so that programs follow a name that points to another server.
const maxLifetime = time.Minute

// Config is the section mysql, of URLs such as mysql://user:password@host:3306/database?table=locks, and of
// LOCKER_MYSQL_ADDR and so on. URLs that begin with mysqls:// use TLS.
type Config struct {
	// Addr is the host or host:port of the server, or of a proxy. The port is 3306 if not given.
	Addr string `yaml:"addr,omitempty" json:"addr,omitempty" url:"-"`
	// Database is the name of the database.
	Database string `yaml:"database,omitempty" json:"database,omitempty" url:"-"`
	// Username and Password, or the content of PasswordFile without its trailing newline, authenticate. The file is
	// read for each new connection, so that it can be replaced while the program runs; see [config.PasswordFile].
	Username     string        `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	Password     config.Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string        `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	// TLS encrypts the connections. Its files are read for each new one.
	TLS *config.TLS `yaml:"tls,omitempty" json:"tls,omitempty"`
	// Table is the name of the table. Empty: [DefaultTable].
	Table string `yaml:"table,omitempty" json:"table,omitempty"`
	// MaxConns is how many connections there are at most. Zero: [DefaultMaxConns].
	MaxConns int `yaml:"max_conns,omitempty" json:"max_conns,omitempty" min:"1"`
	// Poll is the longest pause between two looks of a waiter; see [record.Poll]. Zero: [record.DefaultPoll].
	Poll config.Duration `yaml:"poll,omitempty" json:"poll,omitempty"`
	// Timeout bounds connecting, and each call; see [record.Timeout]. Zero: [record.DefaultTimeout].
	Timeout config.Duration `yaml:"timeout,omitempty" json:"timeout,omitempty"`
	// ClockSkew is by how much the clocks of the server and of its successor may differ; see [record.ClockSkew]. Zero:
	// [Skew].
	ClockSkew config.Duration `yaml:"clock_skew,omitempty" json:"clock_skew,omitempty"`

	credentials config.Credentials `yaml:"-" json:"-"` // those of the program; nil if there are none
}

func init() {
	config.Register("mysql", config.Kind[Config]{
		Schemes: []string{"mysqls"},
		Parse: func(s *Config, at config.Location, _ config.Report) {
			s.Addr, s.Database = at.Host, strings.TrimPrefix(at.Path, "/")
		},
		Format:      func(s *Config) config.Location { return config.Location{Host: s.Addr, Path: "/" + s.Database} },
		Check:       (*Config).check,
		Credentials: func(s *Config, f config.Credentials) { s.credentials = f },
		Open: func(_ context.Context, s *Config, prefix string) (*locker.Client, error) {
			db, err := s.Pool()
			if err != nil {
				return nil, err
			}
			store := NewStore(db, Table(s.Table))
			store.leave = func() { // of connections that are to be idle, the pool closes those beyond the number
				db.SetMaxIdleConns(0)
				db.SetMaxIdleConns(s.maxConns())
			}
			own := struct {
				*Store
				io.Closer
			}{store, db}
			return record.New(own, record.Prefix(prefix), record.Poll(time.Duration(s.Poll)),
				record.Timeout(time.Duration(s.Timeout)), record.ClockSkew(time.Duration(s.ClockSkew))), nil
		},
	})
}

func (s *Config) check(report config.Report) {
	report("addr", config.CheckAddr(s.Addr))
	if s.Database == "" {
		report("database", errors.New("missing: write host/database"))
	}
	switch password := s.Password != "" || s.PasswordFile != ""; {
	case s.Password != "" && s.PasswordFile != "":
		report("password_file", errors.New("there is a password, too: remove one of them"))
	case s.Username == "" && password:
		report("username", errors.New("missing, although there is a password"))
	}
	s.TLS.Check(report)
}

// Pool returns the connections that s describes. It reads files, and asks no server. The caller closes it.
func (s *Config) Pool() (*sql.DB, error) {
	c := client.NewConfig()
	c.Net, c.Addr, c.DBName, c.User, c.Passwd = "tcp", s.Addr, s.Database, s.Username, s.Password.Reveal()
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil { // there is no port
		host, c.Addr = strings.Trim(c.Addr, "[]"), c.Addr+":3306"
	}
	timeout := time.Duration(s.Timeout)
	if timeout == 0 {
		timeout = record.DefaultTimeout
	}
	// The server goes on with a request whose connection is closed until it has got its row. So it gives up first.
	seconds := strconv.Itoa(max(1, int(timeout/2/time.Second)))
	c.Params = map[string]string{
		"autocommit": "1", "innodb_lock_wait_timeout": seconds, "lock_wait_timeout": seconds,
	}
	c.InterpolateParams = true               // one round trip for each request
	c.Logger = new(client.NopLogger)         // it would print errors that are returned, too
	c.AllowCleartextPasswords = s.TLS != nil // as those that cloud providers issue for some minutes
	secure, err := s.TLS.Configs()
	if err != nil {
		return nil, fmt.Errorf("config: mysql.%w", err)
	}
	login := s.credentials
	if s.PasswordFile != "" {
		read, err := config.PasswordFile(s.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("config: mysql.password_file: %w", err)
		}
		login = func(context.Context) (username, password string, err error) { return s.Username, read(), nil }
	}
	err = c.Apply(client.BeforeConnect(func(ctx context.Context, c *client.Config) (err error) {
		if secure != nil {
			c.TLS = named(secure(), host)
		}
		if login != nil {
			c.User, c.Passwd, err = login(ctx)
		}
		return err
	}))
	if err != nil {
		return nil, fmt.Errorf("config: mysql: %w", err)
	}
	connector, err := client.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("config: mysql: %w", err)
	}
	db := sql.OpenDB(&sessions{connector, timeout})
	db.SetMaxOpenConns(s.maxConns())
	db.SetMaxIdleConns(s.maxConns())
	db.SetConnMaxLifetime(maxLifetime)
	return db, nil
}

func (s *Config) maxConns() int {
	if s.MaxConns == 0 {
		return DefaultMaxConns
	}
	return s.MaxConns
}

// named returns c with the name that is checked in the server's certificate.
func named(c *tls.Config, host string) *tls.Config {
	if c.ServerName == "" {
		c.ServerName = host
	}
	return c
}

// sessions makes connections. On Galera, they wait for what other nodes have committed.
type sessions struct {
	driver.Connector
	timeout time.Duration
}

// Connect implements [driver.Connector]. Package sql calls it without a deadline for calls that wait for a connection.
func (s *sessions) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	conn, err := s.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	set := fmt.Sprintf("SET SESSION wsrep_sync_wait = %d", syncWait)
	_, err = conn.(driver.ExecerContext).ExecContext(ctx, set, nil)
	if err != nil && number(err) != unknownVariable { // of servers that cannot be nodes of Galera
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}
