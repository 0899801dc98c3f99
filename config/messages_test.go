package config_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/config"
)

func TestWhiteSpaceAroundAURLDoesNotCount(t *testing.T) {
	want := &config.Config{Backend: "redis", Redis: config.Redis{Addr: "h:1"}}
	for _, url := range []string{"redis://h:1\n", "redis://h:1 ", "\tredis://h:1\r\n", " redis://h:1\n"} {
		c, err := config.Parse(url)
		if assert.NoError(t, err, "%q", url) {
			assert.Equal(t, want, c, "%q", url)
		}
		var overlaid config.Config
		if assert.NoError(t, overlaid.Overlay([]string{"LOCKER_URL=" + url}), "%q", url) {
			assert.Equal(t, *want, overlaid, "%q", url)
		}
	}
}

func TestWhiteSpaceAroundAVariableDoesNotCount(t *testing.T) {
	var c config.Config
	require.NoError(t, c.Overlay([]string{
		"LOCKER_URL= \n", "LOCKER_BACKEND=redis\n", "LOCKER_REDIS_ADDR= h:1\n", "LOCKER_TTL=5s ", "LOCKER_PREFIX= p ",
		"LOCKER_REDIS_PASSWORD= s \r\n",
	}))
	assert.Equal(t, config.Config{
		Backend: "redis", TTL: config.Duration(5 * time.Second), Prefix: ptr(" p "),
		Redis: config.Redis{Addr: "h:1", Password: " s "},
	}, c)
}

func TestQuotesThatAreLeftAroundAValueAreNamed(t *testing.T) {
	for _, quote := range []string{`"`, `'`} {
		_, err := config.Parse(quote + "redis://u:" + secret + "@h" + quote)
		complains(t, err, "config: URL: in quotes")
		complains(t, new(config.Config).Overlay([]string{"LOCKER_URL=" + quote + "memory:" + quote}),
			"config: LOCKER_URL: in quotes")
		complains(t, new(config.Config).Overlay([]string{"LOCKER_BACKEND=memory",
			"LOCKER_TTL=" + quote + "10s" + quote}), "config: LOCKER_TTL: in quotes")
	}
	c := config.Config{Backend: "redis", Redis: config.Redis{Addr: "h"}}
	require.NoError(t, c.Overlay([]string{`LOCKER_REDIS_PASSWORD="a"`, `LOCKER_PREFIX='`}))
	assert.Equal(t, `"a"`, c.Redis.Password.Reveal(), "a password may have quotes")
}

func TestSchemesOfOtherProgramsAreExplained(t *testing.T) {
	for url, want := range map[string]string{
		"": "config: URL: empty: is LOCKER_URL set?",
		//nolint:gocritic // a variable may be set to white space
		" \n":                      "config: URL: empty: is LOCKER_URL set?",
		"redis-sentinel://h:26379": `unknown scheme "redis-sentinel": write redis+sentinel://host:26379,`,
		"sentinel://h:26379":       `unknown scheme "sentinel": write redis+sentinel://host:26379,`,
		"redlock+cluster://a,b,c":  `unknown driver "cluster": a cluster cannot be a node of a Redlock`,
		"redlock+sentinel://a,b,c": `unknown driver "sentinel": nodes that sentinels manage are only for files`,
		"redis-cluster://h":        `unknown scheme "redis-cluster": write redis+cluster://host:6379,host:6379`,
		"redis-socket:///run/r":    `unknown scheme "redis-socket": write unix:///path/of.sock`,
		"redis+unix://h":           `unknown driver "unix": write unix:///path/of.sock`,
		"tcp://h:6379":             `unknown scheme "tcp": write redis://`,
		"consul://h":               `a program that imports another backend has its schemes as well`,
		"postgres://h/app":         `unknown scheme "postgres": import _ "github.com/golocker/locker/backends/postgreslock"`,
		"postgresql://h/app":       `import _ "github.com/golocker/locker/backends/postgreslock"`,
		"natss://h":                `import _ "github.com/golocker/locker/backends/natslock", which is a module of its own`,
		"etcd://h":                 `import _ "github.com/golocker/locker/backends/etcdlock"`,
		"dynamodb://locks":         `import _ "github.com/golocker/locker/backends/dynamodblock"`,
		"s3://bucket/locks":        `import _ "github.com/golocker/locker/backends/s3lock"`,
		"kubernetes://locks":       `import _ "github.com/golocker/locker/backends/kuberneteslock"`,
		"mysqls://h/app":           `import _ "github.com/golocker/locker/backends/mysqllock"`,
		"file:/var/locks":          `unknown scheme "file": import _ "github.com/golocker/locker/backends/filelock"`,
		"file:locks":               `import _ "github.com/golocker/locker/backends/filelock"`,
	} {
		_, err := config.Parse(url)
		complains(t, err, want)
	}
	for _, name := range []string{"postgres", "nats", "etcd", "s3", "dynamodb", "kubernetes", "mysql"} {
		complains(t, (&config.Config{Backend: name}).Validate(),
			`unknown backend "`+name+`": import _ "github.com/golocker/locker/backends/`+name+
				`lock", which is a module of its own`)
	}
	complains(t, (&config.Config{Backend: "file"}).Validate(),
		`unknown backend "file": import _ "github.com/golocker/locker/backends/filelock"`)
}

func TestAMisspeltDriverIsRecognised(t *testing.T) {
	for name, meant := range map[string]string{"GoRedis": "goredis", "go-redis": "goredis", "Redigo": "redigo",
		"ruedis": "rueidis"} {
		_, err := config.Parse("redis+" + name + "://h")
		complains(t, err,
			`config: URL: driver: unknown driver "`+name+`": did you mean `+meant+`? (known: goredis, redigo, rueidis`)
		assert.NotContains(t, err.Error(), "import")
	}
}

func TestAMissingAddressIsCalledThat(t *testing.T) {
	for _, url := range []string{"redis://", "redis:///2", "redlock://,h"} {
		_, err := config.Parse(url)
		complains(t, err, "addr: address missing, e.g. localhost:6379")
	}
	_, err := config.Parse("redis://:6379")
	complains(t, err, "addr: host missing, e.g. localhost:6379")
}

func TestMergeKeysAndExtensionFieldsAreAllowed(t *testing.T) {
	c, err := config.Load(file(t,
		"x-common: &common {driver: rueidis, username: u, password: p}", "x-other: 1", "backend: redlock", "redlock:",
		"  x-note: text",
		"  nodes:", "    - {<<: *common, addr: a}",
		"    - {addr: b, driver: redigo, <<: [*common, {name: second, driver: goredis}]}"))
	require.NoError(t, err)
	assert.Equal(t, []config.Node{
		{Addr: "a", Driver: "rueidis", Username: "u", Password: "p"},
		{Addr: "b", Driver: "redigo", Username: "u", Password: "p", Name: "second"},
	}, c.Redlock.Nodes)
	for name, tt := range map[string]struct {
		lines []string
		want  string
	}{
		"an unknown field by a merge key": {[]string{"backend: memory", "<<: {ttll: 5s}"},
			`locker.yaml:2: unknown field "ttll": did you mean ttl?`},
		"a field in capitals": {[]string{"backend: memory", "TTL: 5s"},
			`locker.yaml:2: unknown field "TTL": did you mean ttl?`},
		"nothing to merge": {[]string{"backend: memory", "<<: 5s"},
			"locker.yaml:2: <<: a section, or a list of sections"},
		"a list of other things": {[]string{"backend: memory", "<<: [5s]"},
			"locker.yaml:2: <<: a section, or a list of sections"},
		"itself": {[]string{"<<: &a [*a, {backend: memory, ttl: 1}]"},
			"ttl: a number without a unit"},
		"bad values": {[]string{"x-t: &t {ttl: 1}", "backend: memory", "<<: *t"},
			"locker.yaml:1: ttl: a number without a unit"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Load(file(t, tt.lines...))
			complains(t, err, tt.want)
		})
	}
}

func TestFilesThatCannotBeUsedAreNamed(t *testing.T) {
	dir := t.TempDir()
	text, none := filepath.Join(dir, "text"), filepath.Join(dir, "none")
	require.NoError(t, os.WriteFile(text, []byte(secret), 0o600))
	for url, want := range map[string]string{
		"redis://h?password_file=" + none: "config: redis.password_file: file not " +
			"found: " + none,
		"rediss://h?tls_ca_file=" + none: "config: redis.tls.ca_file: file not " +
			"found: " + none,
		"rediss://h?tls_ca_file=" + text: "config: redis.tls.ca_file: no PEM certificate " +
			"in " + text,
		"rediss://h?tls_cert_file=" + none + "&tls_key_file=" + text: "config: redis.tls.cert_file, key_file: file " +
			"not found: " + none,
		"rediss://h?tls_cert_file=" + text + "&tls_key_file=" + text: "config: redis.tls.cert_file, " +
			"key_file: no PEM certificate in " + text,
		"redis://h?password_file=" + dir: "is a directory",
	} {
		_, err := config.Open(t.Context(), url)
		complains(t, err, want)
	}
	_, err := config.Load(none)
	complains(t, err, "config: file not found: "+none)
	assert.ErrorIs(t, err, os.ErrNotExist)
}
