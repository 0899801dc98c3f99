package deployment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/recordstore"
	"github.com/golocker/locker/internal/testing/testserver"
	"github.com/golocker/locker/record"
)

// Records are the stores of records, in the order of reports.
var Records = []Deployment{
	Served("records over HTTP", Scheme, func(h http.Handler) http.Handler { return h }),
	Files,
	{Name: "S3", Start: startS3},
	{Name: "DynamoDB", Start: startDynamoDB},
	{Name: "Kubernetes", Start: startKubernetes},
	{Name: "MySQL", Start: startMySQL},
}

// Files is a directory.
var Files = Deployment{Name: "files", Start: startFile, Light: true}

// Scheme is that of URLs of the store that [Served] starts.
const Scheme = "records"

func init() {
	Register(Scheme, func(s record.Store) backend.Backend { return record.NewBackend(s) })
}

// Register makes a scheme for the store that [Served] starts. open returns a Backend of it.
func Register(scheme string, open func(s record.Store) backend.Backend) {
	type settings struct {
		Addr string `yaml:"addr" json:"addr" url:"-"`
	}
	config.Register(scheme, config.Kind[settings]{
		Parse:  func(s *settings, at config.Location, _ config.Report) { s.Addr = at.Host },
		Format: func(s *settings) config.Location { return config.Location{Host: s.Addr} },
		Open: func(_ context.Context, s *settings, _ string) (*locker.Client, error) {
			return locker.NewClient(open(&client{base: "http://" + s.Addr + "/"})), nil
		},
	})
}

// Served is a store of records in this process, which others reach over HTTP, by URLs with a scheme. wrap may change
// what it does.
func Served(name, scheme string, wrap func(http.Handler) http.Handler) Deployment {
	return Deployment{Name: name, Light: true, Start: func(t testing.TB) *Store {
		s := recordstore.New()
		t.Cleanup(s.Wait)
		server := httptest.NewServer(wrap(serve(s)))
		t.Cleanup(server.Close)
		return &Store{
			Servers: []Server{inMemory(t, server.Listener.Addr().String())},
			url:     func(addrs string) string { return scheme + "://" + addrs },
			Mishaps: new(Mishaps),
		}
	}}
}

// inMemory is a server whose data would be lost with its process. Instead of the process, a relay in front of it ends
// and starts again, or stands still.
func inMemory(t testing.TB, addr string) Server {
	front := testserver.NewRelay(t, addr, func() (there, back testserver.Side) {
		return testserver.Side{Read: testserver.Chunks()}, testserver.Side{Read: testserver.Chunks()}
	})
	resume := func() {}
	return Server{
		addr: front.Addr(),
		Restart: func() {
			up := front.Down()
			<-time.After(100 * time.Millisecond)
			up()
		},
		Pause:  func() { resume = front.Hang() },
		Resume: func() { resume() },
	}
}

// serve serves a store over HTTP, as an object store does: a version is an ETag, and a PUT may have a condition.
func serve(s *recordstore.Store) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, name := context.WithoutCancel(r.Context()), strings.TrimPrefix(r.URL.Path, "/")
		var text []byte
		var version string
		var err error
		if r.Method == http.MethodGet {
			text, version, err = s.Get(ctx, name)
		} else {
			var body []byte
			if body, err = io.ReadAll(r.Body); err != nil {
				return // the client has left before it has sent all
			}
			switch in, over := r.Header.Get("If-None-Match"), r.Header.Get("If-Match"); {
			case in != "":
				version, err = s.Create(ctx, name, body)
			case over != "":
				version, err = s.Replace(ctx, name, over, body)
			default:
				s.Put(name, string(body))
				_, version, err = s.Get(ctx, name)
			}
		}
		switch {
		case errors.Is(err, record.ErrConflict):
			w.WriteHeader(http.StatusPreconditionFailed)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case version == "":
			w.WriteHeader(http.StatusNotFound)
		default:
			w.Header().Set("ETag", version)
			_, _ = w.Write(text) //nolint:gosec // no browser reads it
		}
	})
}

// client is the store of a server, as another process has it.
type client struct {
	base string
	http http.Transport
}

// reply is the answer of the server.
type reply struct {
	status  int
	version string
	text    []byte
}

func (r reply) error() error { return fmt.Errorf("status %d: %s", r.status, r.text) }

func (c *client) send(ctx context.Context, method, name string, text []byte, condition ...string) (reply, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+url.PathEscape(name), bytes.NewReader(text))
	if err != nil {
		return reply{}, err
	}
	if len(condition) > 0 {
		r.Header.Set(condition[0], condition[1])
	}
	got, err := c.http.RoundTrip(r)
	if err != nil {
		return reply{}, err
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	return reply{got.StatusCode, got.Header.Get("ETag"), body}, err
}

// Get implements record.Store.
func (c *client) Get(ctx context.Context, name string) ([]byte, string, error) {
	got, err := c.send(ctx, http.MethodGet, name, nil)
	switch {
	case err != nil:
		return nil, "", err
	case got.status == http.StatusNotFound:
		return nil, "", nil
	case got.status != http.StatusOK:
		return nil, "", got.error()
	}
	return got.text, got.version, nil
}

// Create implements record.Store.
func (c *client) Create(ctx context.Context, name string, text []byte) (string, error) {
	return c.put(ctx, name, text, "If-None-Match", "*")
}

// Replace implements record.Store.
func (c *client) Replace(ctx context.Context, name, version string, text []byte) (string, error) {
	return c.put(ctx, name, text, "If-Match", version)
}

func (c *client) put(ctx context.Context, name string, text []byte, condition ...string) (string, error) {
	got, err := c.send(ctx, http.MethodPut, name, text, condition...)
	switch {
	case err != nil:
		return "", err
	case got.status == http.StatusPreconditionFailed:
		return "", record.ErrConflict
	case got.status != http.StatusOK:
		return "", got.error()
	}
	return got.version, nil
}

// Close implements io.Closer.
func (c *client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}
