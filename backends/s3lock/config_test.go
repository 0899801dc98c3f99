package s3lock_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/s3lock"
	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/testing/configtest"
)

// who returns the access key of the last request.
func (s *server) who() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, credential, _ := strings.Cut(s.seen[len(s.seen)-1].Header.Get("Authorization"), "Credential=")
	id, _, _ := strings.Cut(credential, "/")
	return id
}

// The same locks by a URL, in a file, in the environment, and by a client of the program's own. A lock of one is held
// for the others. Credentials that are not given are those of the SDK.
func TestFourWays(t *testing.T) {
	t.Parallel()
	s := start(t)
	own := s.lockClient(t)
	ways := configtest.Ways{
		URL: s.url("&region=eu-west-1&poll=5s&timeout=2s&clock_skew=3s"),
		YAML: "backend: s3\nttl: 5s\ns3:\n  bucket: locks\n  folder: team\n  region: eu-west-1\n" +
			"  endpoint: " + s.endpoint() + "\n  path_style: true\n  access_key_id: AKIDFILE\n" +
			"  secret_access_key: hunter2\n  poll: 5s\n  timeout: 2s\n  clock_skew: 3s\n",
		Env: []string{
			"LOCKER_BACKEND=s3", "LOCKER_S3_BUCKET=locks", "LOCKER_S3_FOLDER=team", "LOCKER_S3_ENDPOINT=" + s.endpoint(),
			"LOCKER_S3_PATH_STYLE=true", "LOCKER_S3_ACCESS_KEY_ID=AKIDVAR", "LOCKER_S3_SECRET_ACCESS_KEY=hunter2",
		},
	}.SameLocks(t, own)
	for way, user := range map[string]string{"file": "AKIDFILE", "environment": "AKIDVAR", "URL": "AKIDENV"} {
		if err := locker.Do(t.Context(), ways[way], "k", func(context.Context) error { return nil }); err != nil {
			t.Errorf("%s: %v", way, err)
		}
		if id := s.who(); id != user {
			t.Errorf("the access key is %s, not %s", id, user)
		}
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	configtest.Mistakes(t, map[string]string{
		"s3://":              "bucket: missing",
		"s3:///folder":       "bucket: missing",
		"s3://a,b":           "bucket: letters, digits",
		"s3://bucket/a//b":   "folder: names with single slashes",
		"s3://bucket/a/../b": "folder: names with single slashes",
		"s3://bucket/" + strings.Repeat("x", 501):                              "folder: at most 500 bytes",
		"s3://bucket?endpoint=minio:9000":                                      "endpoint: write http://host:9000",
		"s3://id:secret@bucket":                                                "no username",
		"s3://bucket?secret_access_key=hunter2":                                "unknown parameter",
		"s3://bucket?bukket=a":                                                 "unknown parameter",
		"s3://bucket?poll=5":                                                   "without a unit",
		"s3://bucket?path_style=perhaps":                                       "path_style",
		"s3://bucket/folder?timeout=1s&timeout=2s":                             "timeout",
		"LOCKER_BACKEND=s3 LOCKER_S3_BUCKET=b LOCKER_S3_ACCESS_KEY_ID=hunter2": "secret_access_key: missing",
	})
	if _, err := config.Open(t.Context(), "s3://bucket"); err == nil ||
		!strings.Contains(err.Error(), "s3.region: missing: give that of the bucket, or set AWS_REGION") {
		t.Errorf("without a region: %v", err)
	}
}

// What a configuration says becomes a URL again.
func TestURLs(t *testing.T) {
	t.Parallel()
	configtest.Texts(t, map[string]string{
		"s3://bucket": "", "s3://bucket/a/b?region=eu-west-1": "",
		"s3://my.bucket/f?endpoint=http%3A%2F%2Fh%3A9000&path_style=true": "",
	})
}

// A server that is down is none of the business of Open. Errors say what to do, and locks are granted when it is up.
func TestServerIsDown(t *testing.T) {
	t.Parallel()
	s := start(t)
	up := s.breakDown()
	l, err := config.Open(t.Context(), s.url("&timeout=2s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if all, probe := s.requests(); len(all)+probe > 0 {
		t.Errorf("Open has sent %v", all)
	}
	if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("while the server is down: %v", err)
	}
	up()
	lease, err := l.TryLock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	elsewhere := refusal(http.StatusTemporaryRedirect, "TemporaryRedirect")
	elsewhere.header = map[string]string{"Location": s.http.URL}
	for want, a := range map[string]*answer{
		`create the bucket "locks"`: refusal(404, "NoSuchBucket"),
		"set the region":            elsewhere, // which is not followed
	} {
		s.answer(func(*http.Request) *answer { return a })
		_, err = l.TryLock(t.Context(), "other")
		if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}

// Close closes the connections. Requests have nothing that other servers do not know.
func TestClientOfAConfiguration(t *testing.T) {
	t.Parallel()
	s := start(t)
	l, err := config.Open(t.Context(), s.url(""))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryLock(t.Context(), "k"); err != nil {
		t.Error(err)
	}
	var seen []*http.Request
	s.set(func() { seen = s.seen })
	for _, r := range seen {
		for name, value := range r.Header {
			if strings.Contains(strings.ToLower(name), "checksum") || strings.Contains(value[0], "chunked") {
				t.Errorf("%s %s has %s: %s", r.Method, r.URL, name, value)
			}
		}
	}
	open := func() (n int) {
		s.set(func() { n = s.conns })
		return n
	}
	if open() == 0 {
		t.Error("no connection is open")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(30 * time.Second); open() > 0; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are open", open())
		}
	}
}

// A client from a configuration leaves a server that hangs after half of its time, and asks once more.
func TestServerThatHangsIsAskedAgain(t *testing.T) {
	t.Parallel()
	s := start(t)
	l, err := config.Open(t.Context(), s.url("&timeout=2s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lease, err := l.TryLock(t.Context(), "k", locker.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer s.hang()()
	s.set(func() { s.seen = nil })
	if err := lease.Extend(t.Context()); !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("while the server hangs: %v", err)
	}
	if all, _ := s.requests(); len(all) != 2 {
		t.Errorf("requests: %v, expected two", all)
	}
}

// Nothing listens at the endpoint.
func TestNothingListens(t *testing.T) {
	t.Parallel()
	l, err := config.Open(t.Context(), "s3://locks?endpoint=http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = l.TryLock(t.Context(), "k")
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
}

// Without credentials, the error says where to put them.
func TestNoCredentials(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	s := start(t)
	l, err := config.Open(t.Context(), s.url(""))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = l.TryLock(t.Context(), "k")
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "give access_key_id") {
		t.Errorf("%v, expected to be told where to give credentials", err)
	}
}

// The program's function is asked for credentials when there are none that are fresh. While it fails, errors say why.
func TestCredentialsOfTheProgram(t *testing.T) {
	t.Parallel()
	s := start(t)
	c, err := config.Parse(s.url(""))
	if err != nil {
		t.Fatal(err)
	}
	var now atomic.Pointer[string] // the access key; nil: there is none
	c.Credentials = func(context.Context) (string, string, error) {
		if id := now.Load(); id != nil {
			return *id, "hunter2", nil
		}
		return "", "", errors.New("the vault is sealed")
	}
	l, err := c.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = l.TryLock(t.Context(), "k")
	if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), "the vault is sealed") ||
		strings.Contains(err.Error(), "give access_key_id") {
		t.Errorf("without credentials: %v", err)
	}
	now.Store(new(""))
	if _, err := l.TryLock(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("with an empty access key: %v", err)
	}
	now.Store(new("AKIDVAULT"))
	lease, err := l.TryLock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if id := s.who(); id != "AKIDVAULT" {
		t.Errorf("the access key is %s", id)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	own := c.Sections["s3"].(*s3lock.Config)
	own.AccessKeyID, own.SecretAccessKey = "AKID", "hunter2"
	if _, err := c.Open(t.Context()); err == nil || !strings.Contains(err.Error(), "s3.access_key_id") {
		t.Errorf("credentials and a function: %v", err)
	}
}

// The times of a server that is not Amazon's are used if the configuration says by how much its clocks differ.
func TestClockSkewIsChosen(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]bool{
		"s3://bucket/folder?region=eu-west-1":                          true,
		"s3://bucket/folder?endpoint=http://127.0.0.1:1":               false,
		"s3://bucket/folder?endpoint=http://127.0.0.1:1&clock_skew=2s": true,
	} {
		l, err := config.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		if of, ok := locker.As[backend.Capable](l); !ok || of.Capabilities().CountsTime != want {
			t.Errorf("%s: CountsTime is not %v", url, want)
		}
		_ = l.Close()
	}
}
