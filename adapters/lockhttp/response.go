package lockhttp

import (
	"bufio"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"

	"github.com/golocker/locker"
)

// response is what a handler that has the lock writes to. Once the lock is lost, it takes no success.
type response struct {
	http.ResponseWriter
	lease  locker.Lease
	before http.Header     // the header when the handler was called
	refuse func(err error) // answers in place of the handler

	status int   // what was sent; 0: nothing
	over   error // not nil: the response is not the handler's any more, and its writes fail with this
}

// Unwrap is for http.ResponseController.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader sends a status, or 500 in place of success if the lock is lost.
func (r *response) WriteHeader(status int) {
	if r.over != nil {
		return
	}
	if lost := r.lost(); lost != nil && status < http.StatusBadRequest {
		if r.status == 0 {
			r.replace(lost)
		}
		return
	}
	if r.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *response) Write(p []byte) (int, error) {
	if err := r.writes(); err != nil {
		return 0, err
	}
	return r.ResponseWriter.Write(p)
}

// FlushError is Flush for http.ResponseController.
func (r *response) FlushError() error {
	if err := r.writes(); err != nil {
		return err
	}
	return http.NewResponseController(r.ResponseWriter).Flush()
}

// Flush implements http.Flusher. It does nothing if the ResponseWriter below cannot flush.
func (r *response) Flush() { _ = r.FlushError() }

// Hijack implements http.Hijacker. Afterwards the connection belongs to the handler.
func (r *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if lost := r.lost(); lost != nil {
		return nil, nil, lost
	}
	conn, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err == nil {
		r.over = http.ErrHijacked
	}
	return conn, rw, err
}

// writes returns an error if the handler may not go on with the body.
func (r *response) writes() error {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if r.over != nil {
		return r.over
	}
	if r.status >= http.StatusBadRequest {
		return nil
	}
	return r.lost()
}

// lost returns the reason if the lease is lost.
func (r *response) lost() error {
	if err := r.lease.Err(); errors.Is(err, locker.ErrLost) {
		return err
	}
	return nil
}

// replace answers in place of the handler. Nothing was sent.
func (r *response) replace(lost error) {
	r.over = lost
	header := r.ResponseWriter.Header()
	clear(header) // it may describe what the handler would have written
	maps.Copy(header, r.before)
	r.refuse(lost)
}

// end ends the response of a handler that has returned, and has lost its lock.
func (r *response) end(lost error) {
	switch {
	case r.over != nil || r.status >= http.StatusBadRequest:
	case r.status == 0:
		r.replace(lost)
	default:
		slog.Default().Warn("a request has lost its lock in the middle of its response", "error", lost)
		panic(http.ErrAbortHandler) // the server closes the connection, or resets the stream of HTTP/2
	}
}
