package config_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/golocker/locker/config"
)

func TestSecretNeverShows(t *testing.T) {
	s := config.Secret(secret)
	c := config.Config{Backend: "redis", Redis: config.Redis{Addr: "h", Password: s}}
	q := config.Config{Backend: "redlock",
		Redlock: config.Redlock{Password: s, Nodes: []config.Node{{Addr: "h", Password: s}}}}
	hidden := func(shown string) {
		t.Helper()
		for _, form := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret),
			fmt.Sprintf("% x", secret), fmt.Sprint([]byte(secret))} {
			assert.NotContains(t, shown, form)
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%#q", "%x", "%X", "% x", "%#x", "%d", "%t", "%U",
		"%10s", "%e", "%b", "%c", "%!", "%z"} {
		assert.Contains(t, fmt.Sprintf(verb, s), "[REDACTED]", verb)
		for _, v := range []any{s, &s, c, &c, c.Redis, q, &q, q.Redlock, q.Redlock.Nodes, []config.Secret{s},
			map[string]config.Secret{"k": s}, struct{ S config.Secret }{s}} {
			hidden(fmt.Sprintf(verb, v))
		}
	}
	hidden(s.String() + s.GoString())
	for _, encode := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal, xml.Marshal} {
		for _, v := range []any{s, c, q} {
			out, err := encode(v)
			require.NoError(t, err)
			assert.Contains(t, string(out), "[REDACTED]")
			hidden(string(out))
		}
	}
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("open", "secret", s, "config", c, "pointer", &c, "redlock", q, "nodes", q.Redlock.Nodes,
			"group", slog.GroupValue(slog.Any("s", s)))
	}
	hidden(log.String())
	assert.Equal(t, secret, s.Reveal())
}

func TestSecretEmpty(t *testing.T) {
	assert.Empty(t, fmt.Sprintf("%v%s%x", config.Secret(""), config.Secret(""), config.Secret("")))
	var s config.Secret
	assert.ErrorContains(t, s.UnmarshalText(nil), "empty")
	assert.ErrorContains(t, s.UnmarshalText([]byte("[REDACTED]")), "mask")
}
