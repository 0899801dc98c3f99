// Package lockdebug shows over HTTP what this process has locked and what it waits for, as net/http/pprof shows its
// goroutines:
//
//	mux.Handle("/debug/locks", lockdebug.Handler(l))
//
// The answer is text, or JSON with ?format=json. The leases that were held for longest come first, and so do the calls
// that have waited for longest: a thousand of each at most. It comes from this process alone, so it comes while the
// store is down, too. The command locker ls asks the store, and shows the locks of all processes.
//
// Whether a lease is wanted is known of callers of this process, and of others as far as locker.Wanted tells. With the
// option locker.Caller, for example in locker.Defaults, the page shows which line has asked for a lock.
//
// Keys may be personal data. Do not mount it where the public can reach it. The owners' tokens are cut off, so nobody
// can release a lock by what is shown.
package lockdebug

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/inspect"
)

// most is how many leases, and how many keys that calls wait for, are shown.
const most = 1000

// Handler returns a handler that shows what l has locked and waits for. l is a Client, or middleware around one.
func Handler(l locker.Locker) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		p, ok := locker.As[inspect.Process](l)
		if !ok {
			http.Error(w, "the Locker does not tell what it has", http.StatusNotImplemented)
			return
		}
		var body bytes.Buffer // the client may be slow
		s := look(p)
		if r.FormValue("format") == "json" {
			h.Set("Content-Type", "application/json")
			e := json.NewEncoder(&body)
			e.SetEscapeHTML(false)
			_ = e.Encode(s)
		} else {
			h.Set("Content-Type", "text/plain; charset=utf-8")
			s.print(&body)
		}
		_, _ = w.Write(body.Bytes())
	})
}

// state is what the process has.
type state struct {
	At     time.Time `json:"at"`
	Held   int       `json:"held"` // how many leases there are
	Leases []lease   `json:"leases"`
	Wanted int       `json:"wanted"` // how many keys calls wait for
	Waits  []wait    `json:"waits"`
}

type lease struct {
	Key    string `json:"key"`
	Owner  string `json:"owner"`
	Label  string `json:"label,omitempty"`
	Fence  uint64 `json:"fence,omitempty"`
	HeldMS int64  `json:"held_ms"`
	LeftMS int64  `json:"left_ms"`          // until it ends unless it is renewed
	Wanted bool   `json:"wanted,omitempty"` // others wait for it, as far as is known here
	Error  string `json:"error,omitempty"`
	Caller string `json:"caller,omitempty"`
}

type wait struct {
	Key      string `json:"key"`
	Calls    int    `json:"calls"`
	WaitedMS int64  `json:"waited_ms"` // the first of them
	Holder   string `json:"holder,omitempty"`
	Error    string `json:"error,omitempty"`
	Caller   string `json:"caller,omitempty"` // of the first of them
}

func look(p inspect.Process) *state {
	now := time.Now()
	s := &state{At: now, Leases: []lease{}, Waits: []wait{}}
	held := oldest[inspect.OwnLease]{since: func(l inspect.OwnLease) time.Time { return l.Since }}
	for l := range p.OwnLeases() {
		held.add(l)
	}
	for _, l := range held.first() {
		s.Leases = append(s.Leases, lease{l.Key, l.Owner, l.Label, l.Fence, now.Sub(l.Since).Milliseconds(),
			max(0, l.Until.Sub(now)).Milliseconds(), l.Wanted, text(l.Err), l.Caller})
	}
	waits := oldest[inspect.OwnWait]{since: func(w inspect.OwnWait) time.Time { return w.Since }}
	for w := range p.OwnWaits() {
		waits.add(w)
	}
	for _, w := range waits.first() {
		s.Waits = append(s.Waits, wait{w.Key, w.Calls, max(0, now.Sub(w.Since)).Milliseconds(), w.Holder, text(w.Err),
			w.Caller})
	}
	s.Held, s.Wanted = held.n, waits.n
	return s
}

func (s *state) print(to io.Writer) {
	fmt.Fprintf(to, "%d leases\n", s.Held)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	if len(s.Leases) > 0 {
		fmt.Fprintln(w, "held for\tleft\tkey\tfence\tlabel\towner\twanted\tlast renewal\tcaller")
	}
	for _, l := range s.Leases {
		wanted := "no"
		if l.Wanted {
			wanted = "yes"
		}
		fmt.Fprintf(w, "%v\t%v\t%q\t%d\t%q\t%s\t%s\t%s\t%s\n", span(l.HeldMS), span(l.LeftMS), l.Key, l.Fence, l.Label,
			l.Owner, wanted, cmp.Or(oneLine(l.Error), "ok"), l.Caller)
	}
	_ = w.Flush()
	fmt.Fprintf(to, "\ncalls wait for %d keys\n", s.Wanted)
	if len(s.Waits) > 0 {
		fmt.Fprintln(w, "first for\tcalls\tkey\tholder\tstore\tcaller")
	}
	for _, c := range s.Waits {
		fmt.Fprintf(w, "%v\t%d\t%q\t%q\t%s\t%s\n", span(c.WaitedMS), c.Calls, c.Key, c.Holder,
			cmp.Or(oneLine(c.Error), "ok"), c.Caller)
	}
	_ = w.Flush()
}

func span(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// oneLine quotes a text unless it is empty.
func oneLine(text string) string {
	if text == "" {
		return ""
	}
	return fmt.Sprintf("%q", text)
}

// oldest keeps the oldest of what is added.
type oldest[T any] struct {
	since func(T) time.Time
	n     int // how many were added
	kept  []T
}

func (o *oldest[T]) add(x T) {
	o.n++
	if o.kept = append(o.kept, x); len(o.kept) == 2*most {
		o.kept = o.first()
	}
}

// first returns the oldest ones in their order.
func (o *oldest[T]) first() []T {
	slices.SortStableFunc(o.kept, func(a, b T) int { return o.since(a).Compare(o.since(b)) })
	return o.kept[:min(most, len(o.kept))]
}
