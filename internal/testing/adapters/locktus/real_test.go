package locktus_test

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/adapters"
	"github.com/golocker/locker/internal/testing/instance"
	"github.com/golocker/locker/internal/testing/storeurl"
)

// fleet is two servers that share uploads, and a client with one upload.
type fleet struct {
	*testing.T
	dir  string
	a, b *server
	path string // of the upload
}

type server struct {
	*instance.Process
	url string
}

const first, second = "the first half, ", "the second half"

// newFleet starts the servers, with locks at url, and creates the upload.
func newFleet(t *testing.T, url string) *fleet {
	t.Helper()
	f := &fleet{T: t, dir: t.TempDir()}
	for _, s := range []**server{&f.a, &f.b} {
		p := instance.Start(t, url, f.dir)
		*s = &server{p, p.Says("at ")}
	}
	r := f.send(f.a, http.MethodPost, "/files/", nil, "Upload-Length", strconv.Itoa(len(first+second)))
	_, id, _ := strings.Cut(r.Header.Get("Location"), "/files/")
	f.path = "/files/" + id
	return f
}

// response is an answer that was read.
type response struct {
	StatusCode int
	Status     string // with the text; without an answer, why there is none
	Header     http.Header
}

// send sends a request. It fails the test, without ending it, if there is no answer.
func (f *fleet) send(to *server, method, path string, body io.Reader, header ...string) *response {
	f.Helper()
	r, err := http.NewRequestWithContext(f.Context(), method, to.url+path, body)
	if err != nil {
		f.Error(err)
		return nil
	}
	r.Header.Set("Tus-Resumable", "1.0.0")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		return &response{Status: err.Error(), Header: http.Header{}}
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return &response{answer.StatusCode, answer.Status + " " + strings.TrimSpace(string(text)), answer.Header}
}

// patch sends a part of the upload.
func (f *fleet) patch(to *server, offset int, body io.Reader) *response {
	f.Helper()
	return f.send(to, http.MethodPatch, f.path, body, "Upload-Offset", strconv.Itoa(offset),
		"Content-Type", "application/offset+octet-stream")
}

// begin sends the first half of the upload to a server, and then nothing, as a client that has lost its connection. It
// returns when that half is stored. rest takes what the client sends later, and answered has the answer.
func (f *fleet) begin(to *server) (rest *io.PipeWriter, answered <-chan *response) {
	f.Helper()
	body, rest := io.Pipe()
	f.Cleanup(func() { _ = rest.Close() })
	answers := make(chan *response, 1)
	go func() { answers <- f.patch(to, 0, body) }()
	if _, err := io.WriteString(rest, first); err != nil {
		f.Error(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); f.stored() != first; <-tick.C {
		if time.Now().After(end) {
			f.Fatalf("not within a minute: %q is stored", f.stored())
		}
	}
	return rest, answers
}

// stored returns what is stored of the upload.
func (f *fleet) stored() string {
	text, err := os.ReadFile(filepath.Join(f.dir, strings.TrimPrefix(f.path, "/files/")))
	if err != nil {
		f.Error(err)
	}
	return string(text)
}

// resume completes the upload on a server.
func (f *fleet) resume(on *server) {
	f.Helper()
	r := f.send(on, http.MethodHead, f.path, nil)
	if offset := r.Header.Get("Upload-Offset"); offset != strconv.Itoa(len(first)) {
		f.Fatalf("%s, with offset %q", r.Status, offset)
	}
	if r := f.patch(on, len(first), bytes.NewBufferString(second)); r.StatusCode != http.StatusNoContent {
		f.Error(r.Status)
	}
}

// complete fails the test unless the upload is what the client has sent.
func (f *fleet) complete() {
	f.Helper()
	if got := f.stored(); got != first+second {
		f.Errorf("%q is stored", got)
	}
}

// interrupted fails the test unless a request was interrupted.
func (f *fleet) interrupted(r *response) {
	f.Helper()
	if !strings.Contains(r.Status, "ERR_UPLOAD_INTERRUPTED") {
		f.Errorf("the first request was answered with %s", r.Status)
	}
}

// onStores runs f with each store of locks.
func onStores(t *testing.T, f func(f *fleet, s storeurl.Server)) {
	for name, start := range adapters.Servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, s := start(t)
			f(newFleet(t, url), s)
		})
	}
}

// A client that comes back on another server goes on there, although its old request still has the lock.
func TestAnUploadIsResumedOnAnotherServer(t *testing.T) {
	onStores(t, func(f *fleet, _ storeurl.Server) {
		_, answered := f.begin(f.a)
		f.resume(f.b)
		f.interrupted(<-answered)
		f.complete()
	})
}

// With locks of each server, the old request writes into the upload after the new one has completed it.
func TestLocksOfOneServerDoNotProtectAnUpload(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "")
	rest, answered := f.begin(f.a)
	f.resume(f.b)
	f.complete()
	if _, err := io.WriteString(rest, "spoilt"); err != nil {
		t.Error(err)
	}
	_ = rest.Close()
	<-answered
	if got := f.stored(); got != first+second+"spoilt" {
		t.Errorf("%q is stored, so this shows nothing", got)
	}
}

func TestAnUploadOfAKilledServerIsResumed(t *testing.T) {
	onStores(t, func(f *fleet, _ storeurl.Server) {
		_, _ = f.begin(f.a)
		f.a.Kill()
		f.resume(f.b)
		f.complete()
	})
}

// An outage that takes longer than the TTL interrupts an upload, and other requests fail until it is over.
func TestAnOutageInterruptsAnUpload(t *testing.T) {
	onStores(t, func(f *fleet, s storeurl.Server) {
		_, answered := f.begin(f.a)
		s.Kill()
		if r := f.send(f.b, http.MethodHead, f.path, nil); r.StatusCode != http.StatusServiceUnavailable {
			f.Errorf("during the outage, a request was answered with %s", r.Status)
		}
		f.interrupted(<-answered)
		s.Restart()
		f.resume(f.b)
		f.complete()
	})
}
