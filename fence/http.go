package fence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Header is the name of the header that carries holds. Its value is a list of RESOURCE=TOKEN, parted by commas, with
// the bytes of a resource escaped as in a segment of a URL's path, and the token in decimal digits:
//
//	Fencing-Token: account:42=1795397069897728, account:43=1795397069897730
const Header = "Fencing-Token"

type holdsKey struct{}

// WithHolds returns a context with holds, which a [Transport] sends with requests.
func WithHolds(ctx context.Context, holds ...Hold) context.Context {
	return context.WithValue(ctx, holdsKey{}, holds)
}

// HoldsFrom returns the holds of a context: those with which [HTTP] has entered the resources of a request, or those
// that [WithHolds] was given.
func HoldsFrom(ctx context.Context) []Hold {
	holds, _ := ctx.Value(holdsKey{}).([]Hold)
	return holds
}

// Transport is an [http.RoundTripper] that sends the holds of the request's context to a service that has the resource:
//
//	client := &http.Client{Transport: fence.Transport{}}
//	ctx = fence.WithHolds(ctx, fence.Of(lease)...)
//
// Send all requests of a hold like this, from the first one that reads. A request fails with [ErrNoToken] if a hold has
// no token. Requests whose context has no holds are sent as they are.
type Transport struct {
	Base http.RoundTripper // http.DefaultTransport if nil
}

// RoundTrip implements [http.RoundTripper].
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	holds := HoldsFrom(r.Context())
	if len(holds) == 0 {
		return base.RoundTrip(r)
	}
	holds, err := sorted(holds)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	members := make([]string, len(holds))
	for i, h := range holds {
		members[i] = url.PathEscape(h.Resource) + "=" + strconv.FormatUint(h.Token, 10)
	}
	r = r.Clone(r.Context())
	r.Header.Set(Header, strings.Join(members, ", "))
	return base.RoundTrip(r)
}

// HTTP is a middleware of net/http for a service that has resources. It enters the resources of a request with the
// tokens that the request brings, and then lets the handler run:
//
//	gate := fence.HTTP{
//		Resources: func(r *http.Request) []string { return []string{"account:" + r.PathValue("id")} },
//		Enter: func(ctx context.Context, holds ...fence.Hold) error { return fences.Enter(ctx, db, holds...) },
//	}
//	mux.Handle("POST /accounts/{id}", authenticated(gate.Handler(pay)))
//
// A request of a holder that is late is answered with 412 and without Retry-After, because its lock is lost: to repeat
// it is of no use. 428 says that the request brings no token for a resource, 400 that its header is wrong, and 503 that
// the resource could not be entered. Then the handler was not called.
//
// Entering refuses nobody who becomes late while the handler runs. So the handler has to write by [SQL.InTx], or by
// [Redis.Write], with [HoldsFrom] of its context. If that returns [ErrStale], answer with 412, too.
//
// Only callers that are trusted may send the header, because a token that is too large shuts out all others. So the
// handler goes behind the one that authenticates.
type HTTP struct {
	// Resources returns which resources the request reads or writes. They are entered, and no others, whatever the
	// header names.
	Resources func(r *http.Request) []string

	// Enter raises the tokens of resources, as [SQL.Enter] and [Redis.Enter] do.
	Enter func(ctx context.Context, holds ...Hold) error

	// Ahead is by how much a token may be ahead of this machine's clock, in microseconds since 1970, from which all
	// stores of this library begin: one minute if zero, without limit if negative. A token that is further ahead is
	// answered with 400. Raise it if the tokens of the store were raised past the clock.
	Ahead time.Duration
}

const usualAhead = time.Minute

// Handler returns a handler that enters the resources of a request, and then calls next.
func (h HTTP) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		holds, status, err := h.holds(r)
		if err == nil {
			status, err = entered(h.Enter(r.Context(), holds...))
		}
		if err == nil {
			next.ServeHTTP(w, r.WithContext(WithHolds(r.Context(), holds...)))
			return
		}
		text := err.Error()
		if status == http.StatusServiceUnavailable {
			text = http.StatusText(status) // what a database says is not for clients
		}
		if status == http.StatusServiceUnavailable && r.Context().Err() == nil || errors.Is(err, errAhead) {
			slog.Default().WarnContext(r.Context(), "a request is not let into its resource", "status", status, "error", err)
		}
		http.Error(w, text, status)
	})
}

var errAhead = errors.New("ahead of the clock")

// holds returns the holds of a request for its resources, or what to answer.
func (h HTTP) holds(r *http.Request) ([]Hold, int, error) {
	tokens, err := tokensOf(r.Header.Values(Header))
	if err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("fence: header %s: %w", Header, err)
	}
	var holds []Hold
	for _, resource := range h.Resources(r) {
		token, ok := tokens[resource]
		if !ok {
			return nil, http.StatusPreconditionRequired, fmt.Errorf("fence: header %s: no token for %q", Header, resource)
		}
		holds = append(holds, Hold{Resource: resource, Token: token})
		ahead := h.Ahead
		if ahead == 0 {
			ahead = usualAhead
		}
		if latest := max(0, time.Now().Add(ahead).UnixMicro()); ahead > 0 && token > uint64(latest) {
			return nil, http.StatusBadRequest, fmt.Errorf("fence: the token %d for %q is %w, by more than %v",
				token, resource, errAhead, ahead)
		}
	}
	if holds, err = sorted(holds); err != nil {
		return nil, http.StatusBadRequest, err
	}
	return holds, 0, nil
}

// entered returns what to answer if the resources could not be entered.
func entered(err error) (int, error) {
	var stale *StaleError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &stale):
		return http.StatusPreconditionFailed, stale
	}
	return http.StatusServiceUnavailable, err
}

// tokensOf reads the values of the header.
func tokensOf(values []string) (map[string]uint64, error) {
	tokens := make(map[string]uint64)
	for member := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if member = strings.Trim(member, " \t"); member == "" {
			continue
		}
		i := strings.LastIndexByte(member, '=')
		if i < 0 {
			return nil, fmt.Errorf("%q is not RESOURCE=TOKEN", member)
		}
		resource, err := url.PathUnescape(member[:i])
		if err != nil {
			return nil, err
		}
		token, err := strconv.ParseUint(member[i+1:], 10, 64)
		if err != nil {
			return nil, err
		}
		if _, twice := tokens[resource]; twice {
			return nil, fmt.Errorf("%q is there twice", resource)
		}
		tokens[resource] = token
	}
	return tokens, nil
}
