package examples_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exported is a line that examples/observability writes: a span, or all metrics.
type exported struct {
	Name         string
	SpanContext  struct{ SpanID string }
	Parent       struct{ SpanID string }
	Attributes   []struct{ Key string }
	Events       []struct{ Name string }
	ScopeMetrics []struct{ Metrics []struct{ Name string } }
}

// telemetry reads what p has written when it has succeeded. It checks that the output is complete to the end.
func (p *program) telemetry(t *testing.T) (metrics, events map[string]bool) {
	t.Helper()
	require.Zero(t, p.wait(t), p.stderr.String())
	require.Regexp(t, `^`+p.warns+`\d+ orders were worked on, \d+ were left to others\n$`, p.stderr.String())
	spans, names := map[string]exported{}, map[string]bool{}
	metrics, events = map[string]bool{}, map[string]bool{}
	for d := json.NewDecoder(&p.stdout); ; {
		var line exported
		err := d.Decode(&line)
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if line.Name != "" {
			spans[line.SpanContext.SpanID] = line
			names[line.Name] = true
		}
		for _, e := range line.Events {
			events[e.Name] = true
		}
		for _, s := range line.ScopeMetrics {
			for _, m := range s.Metrics {
				metrics[m.Name] = true
			}
		}
	}
	for _, s := range spans {
		if strings.HasPrefix(s.Name, "locker.") {
			assert.Equal(t, "work on an order", spans[s.Parent.SpanID].Name, s.Name)
		}
	}
	for _, name := range []string{"work on an order", "locker.lock", "locker.unlock"} {
		assert.True(t, names[name], name)
	}
	for _, name := range []string{
		"locker.lock.acquire.duration", "locker.lock.wait.duration", "locker.lock.attempts", "locker.lock.contentions",
		"locker.lock.waiters", "locker.lease.active", "locker.lease.hold.duration", "locker.lease.remaining",
	} {
		assert.True(t, metrics[name], name)
	}
	return metrics, events
}

// The example is a module of its own, so that the library does not require exporters and their dependencies.
func TestObservability(t *testing.T) {
	buildModule(t, "observability")
	t.Parallel()
	t.Run("in memory", observesMemory)
	t.Run("interrupted", observesToTheEnd)
	t.Run("by OTLP", observesByOTLP)
}

func observesMemory(t *testing.T) {
	t.Parallel()
	metrics, _ := start(t, "observability", nil, "-for", "1s").telemetry(t)
	assert.NotContains(t, metrics, "locker.node.vote.duration")
}

// observesToTheEnd checks that no telemetry is lost after Ctrl-C.
func observesToTheEnd(t *testing.T) {
	t.Parallel()
	p := start(t, "observability", []string{"OTEL_BSP_SCHEDULE_DELAY=100"}, "-for", "1h") // in ms, so that it soon writes
	select {
	case <-p.writes:
	case <-time.After(time.Minute):
		t.Error("no span was written within a minute")
	}
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	p.telemetry(t)
}

func observesByOTLP(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	got := map[string][]byte{}
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got[r.URL.Path] = append(got[r.URL.Path], body...)
	}))
	defer collector.Close()
	p := start(t, "observability",
		[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_SERVICE_NAME=shop"}, "-for", "1s")
	require.Zero(t, p.wait(t), p.stderr.String())
	assert.Empty(t, p.stdout.String())
	for path, words := range map[string][]string{
		"/v1/traces":  {"shop", "locker.lock", "locker.unlock", "locker.key.class"},
		"/v1/metrics": {"shop", "locker.lock.acquire.duration", "locker.lease.active"},
	} {
		for _, word := range words {
			assert.True(t, bytes.Contains(got[path], []byte(word)), "%s is not in what came to %s", word, path)
		}
	}
}
