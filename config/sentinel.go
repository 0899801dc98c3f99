package config

import (
	"errors"
	"log/slog"
	"regexp"
	"strings"

	"github.com/golocker/locker/drivers"
)

// Sentinel says how to find the Redis server that is the master of a deployment which Redis Sentinel manages. The other
// settings of [Redis], such as user and TLS, are for the master. TLS is also used for the sentinels.
type Sentinel struct {
	// Master is the name under which the sentinels know the deployment.
	Master string `yaml:"master,omitempty" json:"master,omitempty" url:"-"`
	// Addrs are the addresses of the sentinels, usually three. The port is 26379 if not given.
	Addrs Addrs `yaml:"addrs,omitempty" json:"addrs,omitempty" url:"-"`
	// Username, Password and PasswordFile authenticate the connections to the sentinels, as those of Redis do for the
	// server. Empty: the sentinels need no password.
	Username     string `yaml:"username,omitempty" json:"username,omitempty"`
	Password     Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string `yaml:"password_file,omitempty" json:"password_file,omitempty"`
}

// masterRE is what sentinels accept as a name.
var masterRE = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func (s *Sentinel) check(report Report) {
	if s == nil {
		return
	}
	switch {
	case s.Master == "":
		report("sentinel.master", errors.New("missing: the name that the sentinels give the master, as in "+
			"redis+sentinel://host:26379/mymaster"))
	case !masterRE.MatchString(s.Master):
		report("sentinel.master", errors.New("not a name that a sentinel accepts: letters, digits and . _ - only"))
	}
	_, err := s.Addrs.full(sentinelPort)
	report("sentinel.addrs", err)
	if s.Password != "" && s.PasswordFile != "" {
		report("sentinel.password_file", errTwoPasswords)
	}
	if s.Username != "" && s.Password == "" && s.PasswordFile == "" {
		report("sentinel.password", errNoPassword)
	}
}

// config reads the password and returns what a driver needs. path and report are those of the section around s.
func (s *Sentinel) config(path func(name string) string, logger *slog.Logger, report Report) *drivers.Sentinel {
	const section = "sentinel."
	addrs, err := s.Addrs.full(sentinelPort)
	report(section+"addrs", err)
	user := Redis{Username: s.Username, PasswordFile: s.PasswordFile, logger: logger}
	return &drivers.Sentinel{
		Master: s.Master, Addrs: addrs, Username: s.Username, Password: s.Password.Reveal(),
		Credentials: user.login(func(name string) string { return path(section + name) },
			func(setting string, err error) { report(section+setting, err) }),
	}
}

// parse takes the sentinels, the name of the master and the database from a URL.
func (s *Sentinel) parse(at Location, db *int, report Report) {
	s.Addrs = parseAddrs(at.Host, sentinelPort)
	master, rest, _ := strings.Cut(strings.TrimPrefix(at.Path, "/"), "/")
	s.Master = master
	report("db", setDB(db, rest))
}

func (s *Sentinel) format(db *int) Location {
	at := Location{Scheme: "redis+sentinel", Host: s.Addrs.format(sentinelPort)}
	if masterRE.MatchString(s.Master) {
		at.Path = "/" + s.Master
	}
	at.Path += pathDB(db)
	return at
}

// identity returns a text that is the same for the same deployment.
func (s *Sentinel) identity() string {
	return "sentinel:" + s.Addrs.format(sentinelPort) + "/" + s.Master
}
