package config_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/redis/servers"
	"github.com/golocker/locker/internal/testing/redistest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/internal/testing/virtual"
	"github.com/golocker/locker/lockertrace"
	"github.com/golocker/locker/memory"
)

// shelf is a backend with a setting of every type, as another module would register one.
type shelf struct {
	Hosts    []shelfHost     `yaml:"hosts,omitempty" json:"hosts,omitempty" url:"-"`
	Room     string          `yaml:"room,omitempty" json:"room,omitempty" url:"-"`
	Username string          `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	Password config.Secret   `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	Wait     config.Duration `yaml:"wait,omitempty" json:"wait,omitempty"`
	Boards   int             `yaml:"boards,omitempty" json:"boards,omitempty" min:"1"`
	Dusty    *bool           `yaml:"dusty,omitempty" json:"dusty,omitempty"`
	TLS      *config.TLS     `yaml:"tls,omitempty" json:"tls,omitempty" url:"-"`
}

type shelfHost struct {
	Addr string        `yaml:"addr" json:"addr"`
	Key  config.Secret `yaml:"key,omitempty" json:"key,omitempty"`
}

// shelved has the settings with which the backend was opened last.
var shelved struct {
	shelf
	prefix string
}

func init() {
	config.Register("xshelf", config.Kind[shelf]{
		Schemes: []string{"xshelfs", "xcupboard"},
		Parse: func(s *shelf, at config.Location, report config.Report) {
			if at.Scheme == "xcupboard" {
				report("room", errors.New("there is no cupboard"))
			}
			s.Hosts, s.Room = []shelfHost{{Addr: at.Host}}, at.Path
		},
		Format: func(s *shelf) config.Location { return config.Location{Host: s.Hosts[0].Addr, Path: s.Room} },
		Check: func(s *shelf, report config.Report) {
			if s.Boards > 9 {
				report("boards", errors.New("too many"))
			}
			if len(s.Hosts) == 0 {
				report("hosts", errors.New("missing"))
			}
		},
		Open: func(_ context.Context, s *shelf, prefix string) (*locker.Client, error) {
			if shelved.shelf, shelved.prefix = *s, prefix; s.Room == "/none" {
				return nil, errors.New("no such room")
			}
			return memory.New(), nil
		},
	})
}

// TestABackendFromOutside reaches a backend of another module by URL, file and environment.
func TestABackendFromOutside(t *testing.T) {
	section := &shelf{
		Hosts: []shelfHost{{Addr: "h:1"}}, Room: "/a b", Username: "u", Password: secret,
		Wait: config.Duration(2 * time.Second), Boards: 3,
		Dusty: ptr(false), TLS: &config.TLS{ServerName: "n"},
	}
	want := &config.Config{Backend: "xshelf", TTL: config.Duration(time.Minute),
		Sections: config.Sections{"xshelf": section}}
	yamlFile := file(t, "backend: xshelf", "ttl: 1m", "xshelf:", "  hosts: [{addr: 'h:1'}]", "  room: /a b",
		"  username: u", "  password: "+secret,
		"  wait: 2s", "  boards: 3", "  dusty: false", "  tls: {server_name: n}")
	const url = "xshelfs://u:" + secret + "@h:1/a%20b?boards=3&dusty=false&tls_server_name=n&ttl=1m0s&wait=2s"
	for name, read := range map[string]func() (*config.Config, error){
		"URL":  func() (*config.Config, error) { return config.Parse(url) },
		"file": func() (*config.Config, error) { return config.Load(yamlFile) },
		"environment": func() (*config.Config, error) {
			c := new(config.Config)
			return c, c.Overlay([]string{"LOCKER_BACKEND=xshelf", "LOCKER_TTL=1m", "LOCKER_XSHELF_HOSTS=h:1",
				"LOCKER_XSHELF_ROOM=/a b",
				"LOCKER_XSHELF_USERNAME=u", "LOCKER_XSHELF_PASSWORD=" + secret + "\n", "LOCKER_XSHELF_WAIT=2s",
				"LOCKER_XSHELF_BOARDS=3",
				"LOCKER_XSHELF_DUSTY=false", "LOCKER_XSHELF_TLS_SERVER_NAME=n"})
		},
		"both": func() (*config.Config, error) {
			return config.Load(file(t, "backend: xshelf", "xshelf: {boards: 4, hosts: [{addr: x}, {addr: y}]}"),
				"LOCKER_URL="+url)
		},
	} {
		c, err := read()
		if !assert.NoError(t, err, name) {
			continue
		}
		assert.Equal(t, want, c, name)
		assert.Equal(t, "xshelfs://u:[REDACTED]@h:1/a%20b?boards=3&dusty=false&tls_server_name=n&ttl=1m0s&wait=2s",
			c.String())

		l, err := c.Open(t.Context())
		require.NoError(t, err, name)
		assert.Equal(t, *section, shelved.shelf, name)
		assert.Equal(t, "lock:", shelved.prefix)
		assert.False(t, l.InProcess())
		lease := steady.Lock(t, l, "k")
		assert.Greater(t, time.Until(lease.Until()), 50*time.Second, "the TTL")
		steady.Unlock(t, lease)
		closeLater(t, l)

		d, err := servers.Of(t.Context(), c)
		require.NoError(t, err, name)
		assert.Empty(t, d.Servers)
	}
}

// waitRecorder is a store that records the patience of its waiters.
type waitRecorder struct {
	*memory.Backend
	seen *time.Duration
}

func (p waitRecorder) Queue(ctx context.Context, req backend.Request, wait backend.Wait) (backend.Grant, error) {
	*p.seen, _ = wait.Left()
	return p.Backend.Queue(ctx, req, wait)
}

var patience time.Duration

func init() {
	config.Register("xpatient", config.Kind[struct{}]{
		Open: func(context.Context, *struct{}, string) (*locker.Client, error) {
			return locker.NewClient(waitRecorder{memory.NewBackend(), &patience}), nil
		},
	})
}

func TestWhichLabelWins(t *testing.T) {
	of := func(l locker.Locker, opts ...locker.Option) string {
		lease := steady.Lock(t, l, "k", opts...)
		_, err := l.TryLock(t.Context(), "k")
		var held *locker.HeldError
		require.ErrorAs(t, err, &held)
		steady.Unlock(t, lease)
		return held.Label
	}
	program := locker.Label("program")
	assert.Contains(t, of(open(t, "memory:")), fmt.Sprint(":", os.Getpid()))
	assert.Equal(t, "program", of(open(t, "memory:", program)))
	assert.Equal(t, "orders 1", of(open(t, "memory:?label=orders%201", program)), "the configuration over the program's")
	assert.Empty(t, of(open(t, "memory:?label=", program)), "an empty one switches it off")
	assert.Equal(t, "call", of(open(t, "memory:?label=orders", program), locker.Label("call")))
	c, err := config.Load(file(t, "backend: memory", "label: orders"))
	require.NoError(t, err)
	assert.Equal(t, "memory:?label=orders", c.String())
	require.NoError(t, c.Overlay([]string{"LOCKER_LABEL=of the environment"}))
	assert.Equal(t, "of the environment", *c.Label)
	for _, bad := range []string{"a%7Cb", "a%2B", "%1b", "%ff"} {
		_, err = config.Parse("memory:?label=" + bad)
		complains(t, err, "URL: label: a label has at most 64 bytes of printable UTF-8 text, without | and +")
	}
}

func TestWhereLocksAreHandedOver(t *testing.T) {
	local := func(url string, opts ...locker.Option) (woken int32) {
		virtual.Test(t, func(t *testing.T) {
			var n atomic.Int32
			ctx := lockertrace.With(t.Context(), &lockertrace.Trace{Woken: func(w lockertrace.Wake) {
				if w.Reason == lockertrace.WakeLocal {
					n.Add(1)
				}
			}})
			l := open(t, url, opts...)
			var wg sync.WaitGroup
			for range 5 { // the first two ask the store
				wg.Go(func() {
					lease, err := l.Lock(ctx, "k")
					assert.NoError(t, err)
					time.Sleep(time.Millisecond)
					assert.NoError(t, lease.Unlock(ctx))
				})
			}
			wg.Wait()
			woken = n.Load()
		})
		return woken
	}
	assert.Positive(t, local("xpatient:"))
	assert.Zero(t, local("xpatient:?no_local_handover=true"))
	assert.Positive(t, local("xpatient:?no_local_handover=false"))
	assert.Zero(t, local("xpatient:?no_local_handover=false", locker.NoLocalHandover()), "the program's default")
	c, err := config.Load(file(t, "backend: memory", "no_local_handover: true"))
	require.NoError(t, err)
	assert.Equal(t, "memory:?no_local_handover=true", c.String())
	require.NoError(t, c.Overlay([]string{"LOCKER_NO_LOCAL_HANDOVER=false"}))
	assert.False(t, c.NoLocalHandover)
}

func TestWhichPatienceWins(t *testing.T) {
	of := func(l locker.Locker, opts ...locker.Option) time.Duration {
		steady.Unlock(t, steady.Lock(t, l, "k", opts...))
		return patience
	}
	program := locker.Patience(time.Second)
	assert.Equal(t, locker.DefaultPatience, of(open(t, "xpatient:")))
	assert.Equal(t, time.Second, of(open(t, "xpatient:", program)))
	assert.Equal(t, 2*time.Second, of(open(t, "xpatient:?patience=2s", program)),
		"the configuration over the program's default")
	assert.Equal(t, 3*time.Second, of(open(t, "xpatient:?patience=2s", program), locker.Patience(3*time.Second)),
		"the call over everything")
	c, err := config.Load(file(t, "backend: xpatient", "patience: 4s"))
	require.NoError(t, err)
	assert.Equal(t, "xpatient:?patience=4s", c.String())
	require.NoError(t, c.Overlay([]string{"LOCKER_PATIENCE=5s"}))
	assert.Equal(t, config.Duration(5*time.Second), c.Patience)
	_, err = config.Parse("memory:?patience=5")
	complains(t, err, "URL: patience: a number without a unit")
	complains(t, (&config.Config{Backend: "memory", Patience: -1}).Validate(), "patience: negative")
}

func TestMistakesAboutABackendFromOutside(t *testing.T) {
	for in, want := range map[string][]string{
		"xshelfs+redigo://h": {"URL: scheme: the backend xshelf has no driver"},
		"xshelf:h":           {"followed by ://"},
		"xshelf://h?boards=0&wait=1": {"URL: boards: must be more than 0",
			"URL: wait: a number without a unit"},
		"xshelf://h?boards=10":          {"URL: boards: too many"},
		"xshelf://h?bords=1":            {`unknown parameter "bords": did you mean boards? (known: prefix, ttl, `},
		"xshelf://h?room=a":             {`unknown parameter "room"`},
		"xshelf://h?tls_ca_file=f":      {"tls_ca_file: only with xshelfs://"},
		"xshelf://u:x:" + secret + "@h": {"write @ as %40"},
		"xshelf://a,u:" + secret + "@h": {"user and password are written once"},
		"xcupboard://h?boards=10":       {"URL: room: there is no cupboard", "URL: boards: too many"},
		"xshelff://h":                   {`unknown scheme "xshelff": did you mean xshelf?`},
		"xshelf://h?password=" + secret: {"password: not among the parameters"},
		"memory://u:" + secret + "@":    {"the backend memory has no username", "the backend memory has no password"},
		"xshelf://h?ttl=1ns&boards=10&replicas=1": {"ttl: 1ns is below", "boards: too many",
			"replicas: only for one Redis"},
	} {
		_, err := config.Parse(in)
		complains(t, err, want...)
	}
	_, err := config.Load(file(t, "backend: xshelf", "xshelf:", "  bords: 1", "  boards: many",
		"  password: ["+secret+"]"))
	complains(t, err,
		`locker.yaml:3: xshelf: unknown field "bords": did you mean boards? `+
			"(known: hosts, room, username, password, wait, boards, dusty, tls)",
		"locker.yaml:4: xshelf.boards: not a whole number", "locker.yaml:5: xshelf.password: a single value",
		"locker.yaml: xshelf.hosts: missing")
	c := &config.Config{Backend: "xshelf"}
	complains(t, c.Overlay([]string{"LOCKER_XSHELF_BORDS=1", "LOCKER_XSHELF_BOARDS=10", "LOCKER_XSHELF_HOSTS=h"}),
		`"LOCKER_XSHELF_BORDS": did you mean LOCKER_XSHELF_BOARDS?`, "LOCKER_XSHELF_BOARDS: too many")
	assert.Equal(t, &config.Config{Backend: "xshelf"}, c, "unchanged")
	_, err = config.Open(t.Context(), "xshelf://h/none")
	assert.EqualError(t, err, "no such room")
	assert.NoError(t,
		(&config.Config{Backend: "memory", Sections: config.Sections{"xshelf": &shelf{Boards: 10}}}).Validate(),
		"an unused section")
}

func TestSecretsOfABackendFromOutsideAreMasked(t *testing.T) {
	c := config.Config{Backend: "xshelf", Sections: config.Sections{
		"xshelf": &shelf{Hosts: []shelfHost{{Addr: "h", Key: secret}}, Password: secret},
	}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%U"} {
		for _, v := range []any{c, &c, c.Sections} {
			assert.NotContains(t, fmt.Sprintf(verb, v), secret, verb)
			assert.NotContains(t, fmt.Sprintf(verb, v), fmt.Sprintf("%x", secret), verb)
		}
	}
	assert.Equal(t, "xshelf://:[REDACTED]@h#hosts[0].key=%5BREDACTED%5D", c.String())
	for name, encode := range map[string]func(any) ([]byte, error){"JSON": json.Marshal, "YAML": yaml.Marshal} {
		out, err := encode(c)
		require.NoError(t, err, name)
		assert.Contains(t, string(out), "[REDACTED]", name)
		assert.NotContains(t, string(out), secret, name)
	}
}

// TestEncodingOfABackendFromOutside checks that a printed Config can be read again, also as a part of a program's file.
func TestEncodingOfABackendFromOutside(t *testing.T) {
	c := config.Config{Backend: "xshelf",
		Sections: config.Sections{"xshelf": &shelf{Hosts: []shelfHost{{Addr: "h"}}, Dusty: ptr(true)}}}
	asJSON, err := json.Marshal(c)
	require.NoError(t, err)
	assert.JSONEq(t, `{"backend":"xshelf","xshelf":{"hosts":[{"addr":"h"}],"dusty":true}}`, string(asJSON))
	asYAML, err := yaml.Marshal(c)
	require.NoError(t, err)
	for _, text := range []string{string(asJSON), string(asYAML)} {
		back, err := config.Load(file(t, text))
		require.NoError(t, err)
		assert.Equal(t, &c, back)
		var program struct{ Locks config.Config }
		require.NoError(t, json.Unmarshal([]byte(`{"locks": `+string(asJSON)+`}`), &program))
		assert.Equal(t, c, program.Locks)
		assert.ErrorContains(t, yaml.Unmarshal([]byte("locks:\n  backend: xshelf\n  xshelf: {bords: 1}"), &program),
			`YAML:3: xshelf: unknown field "bords"`)
	}
}

func TestRegisterRefusesWhatCannotWork(t *testing.T) {
	open := func(context.Context, *struct{}, string) (*locker.Client, error) { return memory.New(), nil }
	for name, register := range map[string]func(){
		"no Open":      func() { config.Register("xa", config.Kind[struct{}]{}) },
		"a taken name": func() { config.Register("xshelf", config.Kind[struct{}]{Open: open}) },
		"a taken scheme": func() {
			config.Register("xa",
				config.Kind[struct{}]{Open: open, Schemes: []string{"unix"}})
		},
		"no TLS": func() {
			config.Register("xa",
				config.Kind[struct{}]{Open: open, Schemes: []string{"xas"}})
		},
		"a field's name": func() { config.Register("ttl", config.Kind[struct{}]{Open: open}) },
		"an odd name":    func() { config.Register("X A", config.Kind[struct{}]{Open: open}) },
		"no name":        func() { config.Register("", config.Kind[struct{}]{Open: open}) },
		"another type": func() {
			config.Register("xa", config.Kind[struct {
				A float64 `yaml:"a" json:"a"`
			}]{Open: func(context.Context, *struct {
				A float64 `yaml:"a" json:"a"`
			}, string) (*locker.Client, error) {
				return nil, nil
			}})
		},
		"different names": func() {
			config.Register("xa", config.Kind[struct {
				A int `yaml:"a" json:"b"`
			}]{Open: func(context.Context, *struct {
				A int `yaml:"a" json:"b"`
			}, string) (*locker.Client, error) {
				return nil, nil
			}})
		},
	} {
		assert.Panics(t, register, name)
	}
}

// vault is a backend with connections, as another module would register one.
type vault struct {
	Addrs        config.Addrs  `yaml:"addrs,omitempty" json:"addrs,omitempty" url:"-"`
	Username     string        `yaml:"username,omitempty" json:"username,omitempty" url:"-"`
	Password     config.Secret `yaml:"password,omitempty" json:"password,omitempty" url:"-"`
	PasswordFile string        `yaml:"password_file,omitempty" json:"password_file,omitempty"`
	TLS          *config.TLS   `yaml:"tls,omitempty" json:"tls,omitempty" url:"-"`

	credentials config.Credentials `yaml:"-" json:"-"`
}

// vaulted are the credentials with which the backend was opened last.
var vaulted config.Credentials

func init() {
	config.Register("xvault", config.Kind[vault]{
		Parse: func(s *vault, at config.Location, _ config.Report) { s.Addrs = config.Addrs{at.Host} },
		Check: func(s *vault, report config.Report) {
			if len(s.Addrs) > 3 {
				report("addrs", assert.AnError)
			}
		},
		Credentials: func(s *vault, f config.Credentials) { s.credentials = f },
		Open: func(_ context.Context, s *vault, _ string) (*locker.Client, error) {
			vaulted = s.credentials
			return memory.New(), nil
		},
	})
}

// A backend either uses the credentials of a program, and nothing else may say who the user is, or it refuses them.
func TestCredentialsOfABackendFromOutside(t *testing.T) {
	credentials := func(context.Context) (string, string, error) { return "locker", "token", nil }
	c, err := config.Parse("xvault://h:1")
	require.NoError(t, err)
	c.Credentials = credentials
	l, err := c.Open(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.NotNil(t, vaulted)
	_, password, _ := vaulted(t.Context())
	assert.Equal(t, "token", password)
	c.Credentials = nil
	l, err = c.Open(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Close())
	assert.Nil(t, vaulted)

	const twice = ": there is a function for credentials, too: remove one of them"
	for url, want := range map[string][]string{
		"xvault://u@h":                  {"config: xvault.username" + twice},
		"xvault://:" + secret + "@h":    {"config: xvault.password" + twice},
		"xvault://h?password_file=/dev": {"config: xvault.password_file" + twice},
		"xshelf://h:1":                  {"config: Credentials: the backend xshelf does not call such a function"},
	} {
		c, err := config.Parse(url)
		require.NoError(t, err)
		c.Credentials = credentials
		complains(t, c.Validate(), want...)
		_, err = c.Open(t.Context())
		complains(t, err, want...)
	}
}

// Addresses are checked without code of the backend, which may have more to say.
func TestAddressesOfABackendFromOutside(t *testing.T) {
	t.Parallel()
	_, err := config.Parse("xvault://h:1")
	require.NoError(t, err)
	for _, good := range []config.Addrs{nil, {"h"}, {"h:1", "10.0.0.1", "[::1]:2"}, {"[::1]"}} {
		c := config.Config{Backend: "xvault", Sections: config.Sections{"xvault": &vault{Addrs: good}}}
		require.NoError(t, c.Validate(), "%v", good)
	}
	for addr, want := range map[string]string{
		"::1":          "not host:port: write an IPv6 address in brackets, as in [::1]",
		"::1:2379":     "not host:port: write an IPv6 address in brackets, as in [::1]",
		"[::1":         "not an IPv6 address in brackets, as in [::1]",
		"h:x":          "the port is not a number from 1 to 65535",
		"h:99999":      "the port is not a number from 1 to 65535",
		"h:0":          "the port is not a number from 1 to 65535",
		"h:":           "there is no port after the colon",
		":1":           "host missing, e.g. localhost",
		"h:1:1":        "not host:port",
		"h1,,h2":       "number 2: address missing, e.g. localhost",
		"h1,":          "number 2: address missing",
		"http://h:1":   "host:port expected, not a URL",
		"h:1,h:1":      "the same address twice",
		"h1;h2":        "separated by something else than commas",
		"user@h":       "the host has other characters than",
		"h1,h2,h3,h:0": "number 4: the port",
	} {
		c := config.Config{Backend: "xvault"}
		complains(t, c.Overlay([]string{"LOCKER_XVAULT_ADDRS=" + addr}), "config: LOCKER_XVAULT_ADDRS: "+want)
	}
	require.NoError(t, config.CheckAddr("[::1]:5432"))
	require.NoError(t, config.CheckAddr("h"))
	require.ErrorContains(t, config.CheckAddr("h1,h2"), "one address expected")
}

// A byte order mark, which editors write, is not a part of a password or a certificate.
func TestAByteOrderMarkIsNoPartOfAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := redistest.Start(t)
	s.Cmd(t, "CONFIG", "SET", "requirepass", "p w")
	l := open(t, "redis://"+s.Addr()+"?password_file="+write(t, dir, "password", []byte("\ufeffp w\r\n")))
	steady.Unlock(t, steady.Lock(t, l, "k"))

	a := redistest.NewAuthority(t)
	ca := write(t, dir, "ca", append([]byte("\ufeff"), a.PEM()...))
	_, err := (&config.TLS{CAFile: ca}).Configs()
	require.NoError(t, err)
}

// The functions for backends of other modules read the files again for each connection, and keep what they contained
// while they cannot be used.
func TestFilesOfABackendFromOutside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := config.PasswordFile(write(t, dir, "empty", nil))
	require.ErrorContains(t, err, "is empty")
	file := write(t, dir, "password", []byte("one\n"))
	password, err := config.PasswordFile(file)
	require.NoError(t, err)
	assert.Equal(t, "one", password())
	write(t, dir, "password", nil)
	assert.Equal(t, "one", password(), "the file is being replaced")
	require.NoError(t, os.Remove(file))
	assert.Equal(t, "one", password())
	write(t, dir, "password", []byte("two\r\n"))
	assert.Equal(t, "two", password())

	c := config.Config{Backend: "xvault", Sections: config.Sections{"xvault": &vault{
		Addrs: config.Addrs{"h"}, PasswordFile: dir + "/none", TLS: &config.TLS{CAFile: file},
	}}}
	wrong := []string{"config: xvault.password_file: file not found: ", "config: xvault.tls.ca_file: no PEM certificate"}
	_, err = c.Open(t.Context())
	complains(t, err, wrong...)
	_, err = servers.Of(t.Context(), &c)
	complains(t, err, wrong...)

	var none *config.TLS
	get, err := none.Configs()
	require.NoError(t, err)
	require.Nil(t, get)
	_, err = (&config.TLS{CAFile: dir + "/none"}).Configs()
	require.ErrorContains(t, err, "tls.ca_file: file not found")
	a, b := redistest.NewAuthority(t), redistest.NewAuthority(t)
	cert, key := a.Issue(t, time.Hour)
	next, nextKey := b.Issue(t, time.Hour)
	get, err = (&config.TLS{
		CAFile: write(t, dir, "ca", a.PEM()), CertFile: write(t, dir, "cert", cert), KeyFile: write(t, dir, "key", key),
		MinVersion: "1.3",
	}).Configs()
	require.NoError(t, err)
	before := get()
	assert.Equal(t, uint16(tls.VersionTLS13), before.MinVersion)
	write(t, dir, "ca", nil)
	write(t, dir, "cert", next)
	half := get()
	assert.True(t, before.RootCAs.Equal(half.RootCAs), "the file is half written")
	assert.Equal(t, before.Certificates[0].Certificate, half.Certificates[0].Certificate, "the key does not belong to it")
	write(t, dir, "ca", b.PEM())
	write(t, dir, "key", nextKey)
	after := get()
	assert.False(t, before.RootCAs.Equal(after.RootCAs))
	assert.NotEqual(t, before.Certificates[0].Certificate, after.Certificates[0].Certificate)
}
