package s3lock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"go.uber.org/goleak"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/s3lock"
	"github.com/golocker/locker/record"
)

// What the machine has for AWS's SDK is not for the tests.
func TestMain(m *testing.M) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "AWS_") {
			_ = os.Unsetenv(name)
		}
	}
	for name, value := range map[string]string{
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_ACCESS_KEY_ID": "AKIDENV", "AWS_SECRET_ACCESS_KEY": "hunter2",
	} {
		_ = os.Setenv(name, value)
	}
	goleak.VerifyTestMain(m)
}

const bucket = "locks"

// answer is what the server says instead of executing a request.
type answer struct {
	status int
	header map[string]string
	body   string
}

// refusal is an answer with an error of S3.
func refusal(status int, code string) *answer {
	return &answer{status: status, body: fmt.Sprintf(
		`<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>as the test has it</Message></Error>`, code)}
}

// server is gofakes3, whose conditional writes are atomic, with faults in front of it. Its memory compares and writes
// under one mutex.
type server struct {
	t    testing.TB
	http *httptest.Server
	api  http.Handler
	data *s3mem.Backend

	mu      sync.Mutex
	down    bool
	lose    bool
	twice   bool          // each PUT is executed twice
	hangs   chan struct{} // closed when the server goes on; nil if it does not hang
	answers func(r *http.Request) *answer
	seen    []*http.Request
	stored  map[string]time.Time
	conns   int // that are open
}

func start(t testing.TB) *server {
	data := s3mem.New()
	if err := data.CreateBucket(bucket); err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, data: data, api: gofakes3.New(data).Server(), stored: make(map[string]time.Time)}
	s.http = httptest.NewUnstartedServer(s)
	s.http.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.set(func() { s.conns++ })
		case http.StateClosed:
			s.set(func() { s.conns-- })
		}
	}
	s.http.Start()
	t.Cleanup(func() {
		s.set(func() { s.down = true })
		s.http.Close() // waits for the requests that are being executed
	})
	return s
}

func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// answer makes the server say what f returns. If that is nil, the request is executed.
func (s *server) answer(f func(r *http.Request) *answer) { s.set(func() { s.answers = f }) }

// ServeHTTP executes a request that has arrived, even if nobody waits for the answer any more.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.set(func() { s.seen = append(s.seen, r.Clone(context.Background())) })
	s.standstill()
	s.mu.Lock()
	down, lose, answers, again := s.down, s.lose, s.answers, s.twice && r.Method == http.MethodPut
	s.lose = false
	s.mu.Unlock()
	if down {
		panic(http.ErrAbortHandler) // closes the connection
	}
	if answers != nil {
		if a := answers(r); a != nil {
			for name, value := range a.header {
				w.Header().Set(name, value)
			}
			w.WriteHeader(a.status)
			_, _ = io.WriteString(w, a.body)
			return
		}
	}
	said := s.execute(r, body)
	if again {
		said = s.execute(r, body)
	}
	if lose {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), said.Header())
	w.WriteHeader(said.Code)
	_, _ = w.Write(said.Body.Bytes())
}

func (s *server) execute(r *http.Request, body []byte) *httptest.ResponseRecorder {
	r = r.Clone(context.Background())
	r.Body = io.NopCloser(bytes.NewReader(body))
	said := httptest.NewRecorder()
	s.api.ServeHTTP(said, r)
	if r.Method == http.MethodPut && said.Code == http.StatusOK {
		s.set(func() { s.stored[strings.TrimPrefix(r.URL.Path, "/"+bucket+"/")] = time.Now() })
	}
	return said
}

// standstill returns when the server does not hang.
func (s *server) standstill() {
	for {
		s.mu.Lock()
		hangs := s.hangs
		s.mu.Unlock()
		if hangs == nil {
			return
		}
		<-hangs
	}
}

func (s *server) hang() (resume func()) {
	hangs := make(chan struct{})
	s.set(func() { s.hangs = hangs })
	return func() {
		s.set(func() {
			if s.hangs == hangs {
				s.hangs = nil
				close(hangs)
			}
		})
	}
}

func (s *server) breakDown() (up func()) {
	s.set(func() { s.down = true })
	return func() { s.set(func() { s.down = false }) }
}

func (s *server) loseReply() { s.set(func() { s.lose = true }) }

// requests returns what has arrived, without the requests of the probe, and the number of these.
func (s *server) requests() (all []string, probe int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.seen {
		if strings.HasSuffix(r.URL.Path, "=probe") {
			probe++
		} else {
			all = append(all, r.Method+" "+r.URL.Path)
		}
	}
	return all, probe
}

// text returns an object, or "" if there is none.
func (s *server) text(key string) string {
	o, err := s.data.GetObject(bucket, key, nil)
	if err != nil {
		return ""
	}
	defer o.Contents.Close()
	text, err := io.ReadAll(o.Contents)
	if err != nil {
		s.t.Error(err)
	}
	return string(text)
}

// put stores an object, whatever was there.
func (s *server) put(key, text string) {
	_, err := s.data.PutObject(bucket, key, map[string]string{}, strings.NewReader(text), int64(len(text)), nil)
	if err != nil {
		s.t.Error(err)
	}
}

func (s *server) delete(key string) {
	if _, err := s.data.DeleteObject(bucket, key); err != nil {
		s.t.Error(err)
	}
}

// taken lists the objects whose locks are taken, and were written less than their length ago.
func (s *server) taken() (keys []string) {
	s.mu.Lock()
	stored := maps.Clone(s.stored)
	s.mu.Unlock()
	for key, at := range stored {
		var lock struct {
			State  string `json:"state"`
			Length int64  `json:"length_ms"`
		}
		text := s.text(key)
		if text == "" || strings.HasSuffix(key, "=probe") {
			continue
		}
		err := json.Unmarshal([]byte(text), &lock)
		if err != nil || lock.State != "free" && time.Since(at) < time.Duration(lock.Length)*time.Millisecond {
			keys = append(keys, key)
		}
	}
	return keys
}

// client returns a client of the program's own.
func (s *server) client(t testing.TB, more ...func(*sdk.Options)) *sdk.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 10}
	t.Cleanup(transport.CloseIdleConnections)
	return sdk.New(sdk.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(s.http.URL), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("AKIDOWN", "hunter2", ""),
		HTTPClient:  &http.Client{Transport: transport},
	}, more...)
}

func (s *server) store(t testing.TB, more ...func(*sdk.Options)) *s3lock.Store {
	store := s3lock.NewStore(s.client(t, more...), bucket, "team")
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// prefix is that of the keys.
const prefix = "lock:"

// lockClient returns a Client with a Store of its own.
func (s *server) lockClient(t testing.TB) *locker.Client {
	l := record.New(s.store(t), record.Prefix(prefix))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// url returns that of the same locks, with more parameters.
func (s *server) url(more string) string {
	return "s3://" + bucket + "/team?endpoint=" + s.endpoint() + "&path_style=true" + more
}

// endpoint has a name for a host. If it is an address, the SDK puts the bucket into the path by itself.
func (s *server) endpoint() string { return strings.Replace(s.http.URL, "127.0.0.1", "localhost", 1) }

// keyOf returns the key of a lock's object.
func keyOf(key string) string { return "team/" + record.NameOf(prefix+key) }
