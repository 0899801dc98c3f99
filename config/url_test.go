package config_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/golocker/locker/config"
)

func TestParse(t *testing.T) {
	at := func(addr string, change ...func(*config.Redis)) *config.Config {
		c := &config.Config{Backend: "redis", Redis: config.Redis{Addr: addr}}
		for _, f := range change {
			f(&c.Redis)
		}
		return c
	}
	for in, want := range map[string]*config.Config{
		"memory:":                        {Backend: "memory"},
		"memory://":                      {Backend: "memory"},
		"MEMORY:?ttl=5s":                 {Backend: "memory", TTL: config.Duration(5 * time.Second)},
		"memory:?prefix=":                {Backend: "memory", Prefix: ptr("")},
		"memory:?prefix=a%40b%23":        {Backend: "memory", Prefix: ptr("a@b#")},
		"redis://h":                      at("h:6379"),
		"redis://h:1/":                   at("h:1"),
		"redis://[::1]":                  at("[::1]:6379"),
		"redis://[fe80::1%25eth0]:1":     at("[fe80::1%eth0]:1"),
		"redis://h/2":                    at("h:6379", func(r *config.Redis) { r.DB = 2 }),
		"redis://h?db=2":                 at("h:6379", func(r *config.Redis) { r.DB = 2 }),
		"redis://h/2?db=2":               at("h:6379", func(r *config.Redis) { r.DB = 2 }),
		"redis+rueidis://h":              at("h:6379", func(r *config.Redis) { r.Driver = "rueidis" }),
		"redis://h?driver=redigo":        at("h:6379", func(r *config.Redis) { r.Driver = "redigo" }),
		"redis+redigo://h?driver=redigo": at("h:6379", func(r *config.Redis) { r.Driver = "redigo" }),
		"redis://u:p%40%3A%2F%25@h":      at("h:6379", func(r *config.Redis) { r.Username, r.Password = "u", "p@:/%" }),
		"redis://:p@h":                   at("h:6379", func(r *config.Redis) { r.Password = "p" }),
		"redis://u@h?password_file=f":    at("h:6379", func(r *config.Redis) { r.Username, r.PasswordFile = "u", "f" }),
		"rediss://h":                     at("h:6379", func(r *config.Redis) { r.TLS = &config.TLS{} }),
		"rediss+goredis://h?tls_ca_file=a&tls_cert_file=b&tls_key_file=c&tls_server_name=d&timeout=1s": at("h:6379",
			func(r *config.Redis) {
				r.Driver, r.TLS, r.Timeout = "goredis",
					&config.TLS{CAFile: "a", CertFile: "b", KeyFile: "c", ServerName: "d"}, config.Duration(time.Second)
			}),
		"unix:///run/r%40.sock?db=1": at("/run/r@.sock", func(r *config.Redis) { r.DB = 1 }),
		"redis://h?guard=30s":        at("h:6379", func(r *config.Redis) { r.Guard = config.Duration(30 * time.Second) }),
		"redis://h?replicas=2&replicas_timeout=300ms": at("h:6379", func(r *config.Redis) {
			r.Replicas, r.ReplicasTimeout = 2, config.Duration(300*time.Millisecond)
		}),
		"unix+redigo://:p@/run/r.sock": at("/run/r.sock",
			func(r *config.Redis) { r.Driver, r.Password = "redigo", "p" }),
	} {
		c, err := config.Parse(in)
		if assert.NoError(t, err, in) {
			assert.Equal(t, want, c, in)
		}
	}
}

func TestParseFaults(t *testing.T) {
	const (
		knownSchemes = "(known: memory, redis, rediss, unix, redis+sentinel, redis+cluster, valkey, valkeys, " +
			"redlock, redlocks"
		knownDrivers = "(known: goredis, redigo, rueidis"
		ofRedis      = parametersOfRedis + ")"
	)
	for in, want := range map[string][]string{
		"":                                      {"empty: is LOCKER_URL set?"},
		"memory":                                {"scheme: missing: write redis://host:6379"},
		"localhost:6379":                        {"scheme: missing: write redis://host:6379"},
		"u:" + secret + "@h":                    {"scheme: missing: write redis://host:6379"},
		"redsi://h":                             {`unknown scheme "redsi": did you mean redis? ` + knownSchemes},
		"redsi://h/x?ttl=1ns":                   {"unknown scheme", "db: not a whole number", "ttl: 1ns"},
		"http://h?tttl=1":                       {`unknown scheme "http" ` + knownSchemes},
		"redis:h":                               {"followed by ://"},
		"redis:/h":                              {"followed by ://"},
		"redis://":                              {"addr: address missing"},
		"redis:///2":                            {"addr: address missing"},
		"redis://:6379":                         {"addr: host missing"},
		"redis://::1":                           {"in brackets"},
		"redis://h:x":                           {"the port is not a number"},
		"redis+goredsi://h":                     {`driver: unknown driver "goredsi": did you mean goredis? ` + knownDrivers},
		"redis+://h":                            {"no driver after the plus sign"},
		"redis+redigo://h?driver=goredis":       {"driver: given twice, and differently"},
		"redis://h?driver=":                     {"driver: empty"},
		"redis://h/1?db=2":                      {"db: given twice, and differently"},
		"redis://h/x":                           {"db: not a whole number"},
		"redis://h?db=-1":                       {"db: not a whole number"},
		"redis://h?db=99999999999":              {"db: not a whole number"},
		"redis://h?tttl=1s":                     {`unknown parameter "tttl": did you mean ttl? (known: ` + ofRedis},
		"redis://h?ttl=1s&ttl=1s":               {"ttl: given more than once"},
		"redis://h?ttl":                         {"one of them has no value"},
		"redis://h?ttl=":                        {"ttl: not a duration"},
		"redis://h?ttl=10":                      {"ttl: a number without a unit"},
		"redis://h?ttl=0":                       {"ttl: a number without a unit"},
		"redis://h?ttl=0s":                      {"ttl: must be more than 0"},
		"redis://h?ttl=1ns":                     {"ttl: 1ns is below the minimum of 10ms"},
		"redis://h?ttl=-1s":                     {"ttl: must be more than 0"},
		"redis://h?ttl=169h":                    {"ttl: 169h0m0s is above the maximum"},
		"redis://h?timeout=0s":                  {"timeout: must be more than 0"},
		"redis://h?prefix=%zz":                  {"prefix: a % that"},
		"redis://h?tls_ca_file=f":               {"tls_ca_file: only with rediss://"},
		"rediss://h?tls_key_file=f":             {"tls_cert_file: missing"},
		"memory:?db=1":                          {`unknown parameter "db" (known: ` + parametersOfAll + ")"},
		"memory:?replicas=1":                    {"URL: replicas: only for one Redis"},
		"redlock://h,i,j?replicas=1":            {"URL: replicas: only for one Redis"},
		"redis://h?replicas=one":                {"replicas: not a whole number"},
		"redis://h?replicas_timeout=1s":         {"replicas_timeout: has no effect without replicas"},
		"redis://h?guard=30":                    {"guard: "},
		"redis://h?guard=1ms":                   {"URL: guard: 1ms is below the minimum of 10ms"},
		"redis://h?guard=48h":                   {"URL: guard: 48h0m0s is above the maximum of 24h0m0s"},
		"redis://h?guard=5s&ttl=30s":            {"URL: guard: 5s is less than the ttl of 30s: give the longest TTL"},
		"redlock://h,i,j?guard=5s&ttl=30s":      {"URL: guard: 5s is less than the ttl of 30s: give the longest TTL"},
		"memory:?guard=5s":                      {`unknown parameter "guard"`},
		"redis://h?fifo=false":                  {`unknown parameter "fifo" (known: ` + parametersOfRedis + ")"},
		"redis://h?timeuot=1s":                  {`unknown parameter "timeuot": did you mean timeout?`},
		"memory+redigo:":                        {"the backend memory has no driver"},
		"memory://h":                            {"the backend memory has no address"},
		"unix://run/r.sock":                     {"three slashes"},
		"unix://":                               {"the absolute path of the socket"},
		"unix:///r.sock/":                       {"not the path of a socket"},
		"unix:///r%zz":                          {"address: a % that"},
		"redis://h?ttl=0s&foo=1&db=x&timeout=5": {"ttl: ", `unknown parameter "foo"`, "db: ", "timeout: "},

		// These URLs have a password, which no error may repeat.
		"redis://u:" + secret + "@h?pasword=" + secret:        {`unknown parameter "pasword"`},
		"redis://h?password=" + secret:                        {"password: not among the parameters"},
		"redis://h?PASS=" + secret:                            {"password: not among the parameters"},
		"redis://u:" + secret + "@h:x/y?ttl=1":                {"port", "db", "ttl"},
		"redis://u:" + secret + "@h?password_file=f":          {"password_file: there is a password, too"},
		"redis://" + secret + "@h":                            {"password: missing, although there is a username"},
		"redis://u:@h":                                        {"password: empty"},
		"redis://u:[REDACTED]@h":                              {"this is the mask"},
		"redis://u:%zz" + secret + "@h":                       {"password: a % that"},
		"redis://u:x@" + secret + "@h":                        {"write @ as %40"},
		"redis://u:x:" + secret + "@h":                        {"write @ as %40, : as %3A"},
		"redis://u:x/" + secret + "@h":                        {"write @ as %40"},
		"redis://u:1?" + secret + "@h":                        {"write @ as %40"},
		"redis://u:1?prefix=" + secret + "@h":                 {"write @ as %40"},
		"redis://u:1#" + secret + "@h":                        {"# as %23"},
		"redis://u:1&" + secret + "?" + secret + "=1@h?ttl=1": {"write @ as %40"},
		"redis://u:" + secret:                                 {"the port is not a number"},
		"redis://u:" + secret + "@h\ni":                       {"the host has other characters than"},
		secret + "@redis://h":                                 {"unknown scheme (known"},
	} {
		t.Run(url.PathEscape(in), func(t *testing.T) {
			_, err := config.Parse(in)
			complains(t, err, want...)
			_, err = config.Open(t.Context(), in)
			complains(t, err, want...)
		})
	}
}

func TestString(t *testing.T) {
	for _, s := range []string{
		"memory:",
		"memory:?prefix=a%40b&ttl=1m0s",
		"redis+goredis://u:[REDACTED]@[::1]:1/2?timeout=1s",
		"redis://h:6379?replicas=1&replicas_timeout=2s",
		"redis://h:6379?guard=30s&ttl=10s",
		"rediss://:[REDACTED]@h:6379?tls_ca_file=%2Fca.pem",
		"unix+redigo:///run/a%20b%40.sock?db=1&prefix=",
	} {
		c, err := config.Parse(strings.Replace(s, "[REDACTED]", secret, 1))
		require.NoError(t, err, s)
		assert.Equal(t, s, c.String())
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"memory:", "memory:?ttl=5s&prefix=a", "redis://h", "redis://h:1/2?db=2&timeout=1s",
		"redis+rueidis://[::1]:6379?driver=rueidis",
		"rediss://h?tls_ca_file=f&tls_cert_file=a&tls_key_file=b", "unix:///run/r.sock?db=1&replicas=1",
		"redis://u@h?password_file=f",
		"redis+sentinel+rueidis://s1:1,s2/m/2?sentinel_password_file=f", "rediss+cluster://a,[::1]:1?tls_ca_file=f",
		"valkeys+sentinel://u@s?password_file=f",
		"unix:////%2F%40", "redis://[fe80::1%25a]", "redis://%zz:1@", "redis://h?prefix=%zz", "x://", "redis+a+b://h,i",
		"redlock+redigo://h,i:2,[::1]/2?budget=1s&timeout=1s", "redlocks://h,i?tls_ca_file=f",
		"redlock://u@%2Fa%2Cb,[fe80::1%25a]?password_file=f", "redlock://a,,b",
	} {
		f.Add(s, "u", "/")
	}
	for _, delimiter := range []string{"@", ":", "?", "#", "%", "&", ",", ",a:", "/?", "?a=", "?a=b&", " ", "\n"} {
		f.Add("redis://h/1?db=2", "u", delimiter)
		f.Add("redlock://h,i:2,j/1?db=2", "u", delimiter)
	}
	f.Fuzz(func(t *testing.T, raw, user, delimiter string) {
		if c, err := config.Parse(raw); err == nil && c.Redis.Password == "" && c.Redlock.Password == "" {
			again, err := config.Parse(c.String())
			require.NoError(t, err, c.String())
			assert.Equal(t, c, again)
		}
		// The fuzz test also puts a password where one belongs, whole and with a character that should be escaped.
		const a, b = "QzAlpha9", "QzBeta8"
		scheme, rest, ok := strings.Cut(raw, "://")
		if !ok || strings.Contains(raw+user+delimiter, "Qz") {
			return
		}
		for _, planted := range []string{
			scheme + "://" + user + ":" + a + b + "@" + rest,
			scheme + "://" + user + ":" + a + delimiter + b + "@" + rest,
		} {
			c, err := config.Parse(planted)
			if err != nil {
				assert.NotContains(t, err.Error(), a)
				assert.NotContains(t, err.Error(), b)
			} else if !strings.ContainsAny(scheme+user+delimiter, ":/?#@&=") {
				assert.NotContains(t, c.String(), a)
				assert.NotContains(t, c.String(), b)
			}
		}
	})
}
