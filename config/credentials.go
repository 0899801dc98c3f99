package config

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Credentials is a function that is called for every new connection to a server, and returns the user and the password
// for it. It is for tokens that expire, and for passwords from elsewhere than a file. It may be called concurrently. An
// empty user is the default one, or none. If it returns an error, no connection is made, and calls for locks fail with
// locker.ErrUnavailable and that error. All servers of a Redlock get the same.
type Credentials func(ctx context.Context) (username, password string, err error)

var errCredentials = errors.New("there is a function for credentials, too: remove one of them")

// loginSettings are the settings of a password, in the section of the given path.
type loginSettings struct {
	path     string
	password Secret
	file     string
}

func (r *Redis) logins() []loginSettings {
	return []loginSettings{{"redis", r.Password, r.PasswordFile}}
}

func (r *Redlock) logins() []loginSettings {
	all := []loginSettings{{"redlock", r.Password, r.PasswordFile}}
	for i, n := range r.Nodes {
		all = append(all, loginSettings{"redlock." + nodePath(i), n.Password, n.PasswordFile})
	}
	return all
}

// checkCredentials reports settings that Credentials would override, and a backend that would not call it. Locks in
// this process need no credentials.
func (c *Config) checkCredentials(k *kind, report Report) {
	switch {
	case c.Credentials == nil || k.InProcess:
		return
	case k.onRedis == nil && k.Credentials == nil:
		report("Credentials", fmt.Errorf("the backend %s does not call such a function: remove it, or connect to the store "+
			"in code, without a configuration", k.name))
		return
	case k.onRedis == nil:
		for _, name := range []string{"username", "password", "password_file"} {
			if f := k.field(name); f != nil {
				if _, given := f.text(c); given {
					report(f.path, errCredentials)
				}
			}
		}
		return
	}
	for _, l := range k.onRedis(c).logins() {
		switch {
		case l.password != "":
			report(l.path+".password", errCredentials)
		case l.file != "":
			report(l.path+".password_file", errCredentials)
		}
	}
}

// login reads the password file, if there is one, and returns the function that reads it again for each connection, or
// the one of Config.Credentials. It returns nil if the password does not change.
func (r *Redis) login(path func(name string) string, report Report) Credentials {
	if r.credentials != nil || r.PasswordFile == "" {
		return r.credentials
	}
	const name = "password_file"
	file := &reread[string]{setting: path(name), logger: r.logger,
		read: func() (string, error) { return readPassword(r.PasswordFile) }}
	report(name, file.begin())
	return func(context.Context) (string, string, error) { return r.Username, file.get(), nil }
}

// PasswordFile reads a file with a password, and returns a function that reads it again, for each new connection. The
// password is the content without newlines at its end. While the file cannot be read, or is empty, the function returns
// what the file contained before. It may be called concurrently. PasswordFile is for backends that are registered by
// other packages.
func PasswordFile(file string) (read func() string, err error) {
	r := &reread[string]{read: func() (string, error) { return readPassword(file) }}
	if err := r.begin(); err != nil {
		return nil, err
	}
	return r.get, nil
}

func readPassword(file string) (string, error) {
	data, err := readFile(file)
	if err != nil {
		return "", err
	}
	password := strings.TrimRight(string(data), "\r\n")
	if password == "" {
		return "", fmt.Errorf("%s is empty", file)
	}
	return password, nil
}
