// Package httpdate reads the time of stores over HTTP.
package httpdate

import (
	"net/http"

	"github.com/golocker/locker/record"
)

// Tell tells the time of an answer, which is its Date: see [record.ServerClock]. So do answers such as that there is no
// record. An answer with an Age is one that a cache has kept, and one of a server's failure may be that of a machine
// between this one and the store.
func Tell(r *http.Request, answer *http.Response) {
	if answer.StatusCode >= http.StatusInternalServerError || answer.Header.Get("Age") != "" {
		return
	}
	if now, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		record.Tell(r.Context(), now)
	}
}
