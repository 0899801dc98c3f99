//go:build unix

// Package kubetest has a small API server of Kubernetes for tests, in the process of the test. It knows one kind of
// object, the Leases of coordination.k8s.io/v1, in JSON, and five requests: GET, POST, PUT, a watch of one, and a list.
// With these it does what k8s.io/apiserver does, from resource versions and preconditions to the texts of errors. Its
// data outlast a restart.
package kubetest

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/golocker/locker/internal/testing/testserver"
)

// Namespace is one that exists. All others but "default" do not.
const Namespace = "locks"

// Request is what a fault is decided by.
type Request struct {
	Method string // GET, POST, PUT, WATCH or LIST
	Name   string // of the Lease
}

// Fault says what happens to a request. The zero value is no fault.
type Fault struct {
	Answer   *Status // the answer, instead of the one that it would get
	Executed bool    // it is executed, although there is an Answer
	Lost     bool    // it is executed, and the connection is closed instead of an answer
}

// Server is an API server. Its methods may be called from several goroutines.
type Server struct {
	tb   testing.TB
	addr string
	tls  *tls.Config
	ca   []byte

	mu       sync.Mutex
	leases   map[string]object   // by namespace and name
	lists    map[string][]object // what is left of lists, by their tokens
	revision int
	token    string
	faults   func(Request) Fault
	lose     bool
	watches  []*watch
	hung     chan struct{} // closed when it goes on; nil if it does not hang
	waiting  int           // requests that wait for that
	counts   map[string]int

	opened, stranded int // connections that were made, and how many of these get no more answers

	http  *http.Server  // nil while it is down
	ended chan struct{} // closed when http has ended
}

// Start runs an empty server on a port of the loopback interface until the test ends.
func Start(tb testing.TB) *Server {
	tb.Helper()
	return start(tb, nil, nil)
}

// StartTLS is Start of a server with a certificate.
func StartTLS(tb testing.TB) *Server {
	tb.Helper()
	own := httptest.NewTLSServer(http.NotFoundHandler())
	defer own.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate().Raw})
	return start(tb, &tls.Config{Certificates: own.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}, ca)
}

func start(tb testing.TB, config *tls.Config, ca []byte) *Server {
	tb.Helper()
	s := &Server{
		tb: tb, addr: testserver.FreeAddr(tb), tls: config, ca: ca,
		leases: make(map[string]object), lists: make(map[string][]object), counts: make(map[string]int),
	}
	s.Restart()
	tb.Cleanup(func() {
		s.resume()
		s.Kill()
	})
	return s
}

// Addr returns the address, host:port.
func (s *Server) Addr() string { return s.addr }

// CA returns the certificate of a server with TLS, in PEM.
func (s *Server) CA() []byte { return s.ca }

// Kubeconfig writes a kubeconfig for the server, whose user has the given token, and returns its path. The namespace of
// its context is [Namespace].
func (s *Server) Kubeconfig(token string) (path string) {
	s.tb.Helper()
	path = filepath.Join(s.tb.TempDir(), "kubeconfig")
	cluster := map[string]any{"server": "http://" + s.addr}
	if s.tls != nil {
		cluster = map[string]any{"server": "https://" + s.addr, "certificate-authority-data": s.ca}
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []any{map[string]any{"name": "test", "cluster": cluster}},
		"users":    []any{map[string]any{"name": "test", "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": "test", "context": map[string]any{
			"cluster": "test", "user": "test", "namespace": Namespace,
		}}},
	})
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		s.tb.Fatalf("kubetest: %v", err)
	}
	return path
}

// URL returns a URL for config.Open.
func (s *Server) URL() string {
	s.tb.Helper()
	return "kubernetes://" + Namespace + "?kubeconfig=" + s.Kubeconfig("")
}

// Kill closes all connections, and refuses new ones until Restart.
func (s *Server) Kill() {
	s.mu.Lock()
	running, ended := s.http, s.ended
	s.http = nil
	s.mu.Unlock()
	if running != nil {
		_ = running.Close()
		<-ended
	}
}

// Restart starts the server, after Kill or instead of it, at the same address and with the same data.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		s.tb.Errorf("kubetest: %v", err)
		return
	}
	if s.tls != nil {
		l = tls.NewListener(l, s.tls)
	}
	s.http = &http.Server{
		Handler: http.HandlerFunc(s.serve), ConnContext: s.connection, ReadHeaderTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0),
	}
	s.ended = make(chan struct{})
	go func(server *http.Server, ended chan<- struct{}) {
		defer close(ended)
		_ = server.Serve(l)
	}(s.http, s.ended)
}

// Down is Kill, and up is Restart.
func (s *Server) Down() (up func()) {
	s.Kill()
	return s.Restart
}

// Hang makes the server stand still until resume is called. It then executes what has arrived in between.
func (s *Server) Hang() (resume func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hung == nil {
		s.hung = make(chan struct{})
	}
	return s.resume
}

func (s *Server) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hung != nil {
		close(s.hung)
		s.hung = nil
	}
}

// Strand makes all connections that there are now useless: nothing that is sent there has an effect, or an answer. A
// network does that whose firewall has forgotten its connections.
func (s *Server) Strand() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stranded = s.opened
}

// LoseReply makes the server lose the answer to the next write, with the connection. client-go repeats reads by itself.
func (s *Server) LoseReply() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose = true
}

// Inject sets the function that decides what happens to each request, from now on. nil means that nothing does. It is
// called with a mutex held.
func (s *Server) Inject(faults func(Request) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = faults
}

// Require makes the server refuse requests without the token.
func (s *Server) Require(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// Requests returns how many requests of each method have arrived.
func (s *Server) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counts)
}

// connections have numbers, which are kept in their contexts.
type connectionKey struct{}

func (s *Server) connection(ctx context.Context, _ net.Conn) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	return context.WithValue(ctx, connectionKey{}, s.opened)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if s.isStranded(r) {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
	s.standstill()
	status, answer, lost := s.answer(r, body)
	if lost {
		panic(http.ErrAbortHandler)
	}
	if key, ok := answer.(watchedKey); ok {
		s.follow(w, r, string(key))
		return
	}
	if failed, ok := answer.(*Status); ok {
		failed.write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *Server) isStranded(r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.Context().Value(connectionKey{}).(int) <= s.stranded
}

// Waiting returns how many requests wait for the end of Hang.
func (s *Server) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// standstill returns when the server does not hang.
func (s *Server) standstill() {
	count := func(n int) (hung chan struct{}) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiting += n
		return s.hung
	}
	count(1)
	defer count(-1)
	for {
		hung := count(0)
		if hung == nil {
			return
		}
		<-hung
	}
}

// answer executes a request, unless a fault keeps it from that.
func (s *Server) answer(r *http.Request, body []byte) (status int, answer any, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, err := parse(r, body)
	s.counts[cmp.Or(at.method, r.Method)]++
	if err != nil {
		return 0, err, false
	}
	var f Fault
	if s.faults != nil {
		f = s.faults(Request{at.method, at.name})
	}
	if s.lose && r.Method != http.MethodGet {
		s.lose, f.Lost = false, true
	}
	if f.Answer != nil && !f.Executed {
		return 0, f.Answer, false
	}
	if s.token != "" && r.Header.Get("Authorization") != "Bearer "+s.token {
		return 0, &Status{Code: http.StatusUnauthorized, Reason: "Unauthorized", Message: "Unauthorized"}, false
	}
	status, answer = s.execute(at)
	if f.Answer != nil {
		return 0, f.Answer, false
	}
	return status, answer, f.Lost
}

// Lease returns the object of that name in [Namespace] as JSON, and an empty text if there is none.
func (s *Server) Lease(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.leases[Namespace+"/"+name]
	if !ok {
		return ""
	}
	return o.text()
}

// Leases returns the objects in [Namespace], by their names, and when each was written.
func (s *Server) Leases() (texts map[string]string, at map[string]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	texts, at = make(map[string]string), make(map[string]time.Time)
	for _, o := range s.leases {
		if o.namespace() == Namespace {
			texts[o.name()], at[o.name()] = o.text(), o.at
		}
	}
	return texts, at
}

// Put stores an object of JSON in [Namespace], whatever was there.
func (s *Server) Put(text string) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := newObject([]byte(text))
	if err != nil {
		s.tb.Fatalf("kubetest: %v", err)
	}
	o.meta()["namespace"] = Namespace
	old, ok := s.leases[Namespace+"/"+o.name()]
	if !ok {
		s.create(o)
		return
	}
	s.update(o, old)
}

// Delete deletes an object in [Namespace].
func (s *Server) Delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision++
	if o, ok := s.leases[Namespace+"/"+name]; ok {
		s.tell("DELETED", o)
	}
	delete(s.leases, Namespace+"/"+name)
}

// Status is an error of the API server.
type Status struct {
	Code            int
	Reason, Message string
	Kind, Name      string        // of the object that it is about
	RetryAfter      time.Duration // in whole seconds
	Continue        string        // the token to go on with
	Page            bool          // it is not from an API server: the answer is the message, as a text
}

func (f *Status) write(w http.ResponseWriter) {
	seconds := int(f.RetryAfter / time.Second)
	if seconds > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(seconds))
	}
	if f.Page {
		http.Error(w, f.Message, f.Code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Code)
	details := map[string]any{}
	for field, value := range map[string]string{"kind": f.Kind, "name": f.Name} {
		if value != "" {
			details[field] = value
		}
	}
	if f.Kind == "leases" {
		details["group"] = group
	}
	if seconds > 0 {
		details["retryAfterSeconds"] = seconds
	}
	meta := map[string]any{}
	if f.Continue != "" {
		meta["continue"] = f.Continue
	}
	outcome := "Failure"
	if f.Code < http.StatusMultipleChoices {
		outcome = "Success"
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": meta, "status": outcome, "code": f.Code,
		"reason": f.Reason, "message": f.Message, "details": details,
	})
}
