//go:build unix

package kubetest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// event is one of a watch, as it is sent.
type event struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

// watch is a watch in progress.
type watch struct {
	key    string     // namespace and name of the Lease
	events chan event // those that were not sent yet
	end    chan struct{}
}

// maxEvents is how many events a watch may be late.
const maxEvents = 1000

// tell tells those who watch a Lease. Call with mu held.
func (s *Server) tell(kind string, o object) {
	for _, w := range s.watches {
		if w.key == o.namespace()+"/"+o.name() {
			w.events <- event{kind, o.copied()}
		}
	}
}

// copied returns the fields as they are now.
func (o object) copied() any { return json.RawMessage(o.text()) }

// follow answers a watch of one Lease: with what it is, and with each change from then on, until timeoutSeconds are
// over.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, key string) {
	s.mu.Lock()
	own := &watch{key: key, events: make(chan event, maxEvents), end: make(chan struct{})}
	if o, ok := s.leases[key]; ok {
		own.events <- event{"ADDED", o.copied()}
	}
	s.watches = append(s.watches, own)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watches = slices.DeleteFunc(s.watches, func(other *watch) bool { return other == own })
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case e := <-own.events:
			_ = json.NewEncoder(w).Encode(e)
		case <-own.end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// Watches returns how many watches are in progress.
func (s *Server) Watches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches)
}

// Expire ends the watches in progress, as an API server does whose history has been compacted.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watches {
		w.events <- event{"ERROR", map[string]any{
			"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
			"message": "too old resource version: 1 (2)", "reason": "Expired", "code": http.StatusGone,
		}}
	}
}

// EndWatches ends the watches in progress, as an API server does after a while.
func (s *Server) EndWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watches {
		close(w.end)
	}
	s.watches = nil
}

// watched returns the name of the Lease that a request asks to watch.
func watched(r *http.Request) (name string, ok bool) {
	q := r.URL.Query()
	if r.Method != http.MethodGet || q.Get("watch") != "true" || q.Get("timeoutSeconds") == "" ||
		q.Get("resourceVersion") != "" {
		return "", false
	}
	return strings.CutPrefix(q.Get("fieldSelector"), "metadata.name=")
}
