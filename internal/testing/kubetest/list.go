//go:build unix

package kubetest

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// listed is the part of a request to list Leases.
type listed struct {
	limit int
	from  string // the token with which it continues
}

func listOf(r *http.Request) *listed {
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	return &listed{limit, r.URL.Query().Get("continue")}
}

// latest is what a token begins with that continues a list with what is true then, behind the name that follows.
const latest = "latest/"

// list returns a page. A list is continued with what was true at its beginning, until Compact. Call with mu held.
func (s *Server) list(c call) (status int, answer any) {
	rest, known := s.lists[c.list.from]
	after, anew := strings.CutPrefix(c.list.from, latest)
	switch {
	case c.list.from == "" || anew:
		for _, key := range slices.Sorted(maps.Keys(s.leases)) {
			if o := s.leases[key]; o.namespace() == c.namespace && (after == "" || o.name() > after) {
				rest = append(rest, o)
			}
		}
	case !known:
		_, name, _ := strings.Cut(c.list.from, "/")
		return 0, &Status{
			Code: http.StatusGone, Reason: "Expired", Continue: latest + name,
			Message: "The provided continue parameter is too old to display a consistent list result. You can start a new " +
				"list without the continue parameter, or use the continue token in this response to retrieve the remainder of " +
				"the results.",
		}
	}
	n := min(len(rest), cmp.Or(c.list.limit, len(rest)))
	meta := map[string]any{"resourceVersion": strconv.Itoa(s.revision)}
	if rest, page := rest[n:], rest[:n]; len(rest) > 0 {
		token := fmt.Sprintf("%d/%s", len(s.lists), page[n-1].name())
		s.lists[token] = rest
		meta["continue"] = token
	}
	items := make([]map[string]any, n)
	for i, o := range rest[:n] {
		items[i] = o.fields
	}
	return http.StatusOK, map[string]any{
		"kind": "LeaseList", "apiVersion": group + "/v1", "metadata": meta, "items": items,
	}
}

// Compact makes the server forget what was true at the beginning of lists.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.lists)
}
