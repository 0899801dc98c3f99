// Package aws has what the configurations of stores on AWS share, except what needs AWS's SDK, which must not become a
// requirement of the library: each store is a module with its own part of the SDK.
package aws

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/golocker/locker/config"
	"github.com/golocker/locker/internal/httpdate"
	"github.com/golocker/locker/record"
)

// Account is how a store reaches AWS, or a server that is not Amazon's.
type Account struct {
	Section  string // the store's section of the configuration, such as "s3"
	Of       string // what the region is that of, such as "the bucket"
	Endpoint string // empty: Amazon's

	AccessKeyID string
	Secret      config.Secret
	Function    config.Credentials // the program's own; nil if there is none

	Timeout time.Duration // of a call of the store; zero: record.DefaultTimeout
}

// Check reports what cannot be used. example is an endpoint for the message.
func (a *Account) Check(report config.Report, example string) {
	if a.Endpoint != "" {
		u, err := url.Parse(a.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
			report("endpoint", fmt.Errorf("write %s or https://host", example))
		}
	}
	switch {
	case a.AccessKeyID == "" && a.Secret != "":
		report("access_key_id", errors.New("missing, although there is a secret_access_key"))
	case a.AccessKeyID != "" && a.Secret == "":
		report("secret_access_key", errors.New("missing, although there is an access_key_id"))
	}
}

// keepCredentials is for how long a Client uses what the program's function for credentials has returned. Other
// backends call it for each new connection. Here each request is signed, whichever connection takes it.
const keepCredentials = time.Minute

// Ask returns credentials. If expires is not zero, they are to be asked for again then.
type Ask func(ctx context.Context) (id, secret string, expires time.Time, err error)

// Credentials returns the credentials of the configuration, or nil if the SDK has to look for them. The SDK calls the
// result once at a time.
func (a *Account) Credentials() (Ask, error) {
	switch {
	case a.Function != nil && a.AccessKeyID != "":
		return nil, fmt.Errorf("%s.access_key_id: there is a function for credentials, too: remove one of them", a.Section)
	case a.Function != nil:
		return a.ask, nil
	case a.AccessKeyID != "":
		return func(context.Context) (string, string, time.Time, error) {
			return a.AccessKeyID, a.Secret.Reveal(), time.Time{}, nil
		}, nil
	}
	return nil, nil
}

// ask calls the program's function.
func (a *Account) ask(ctx context.Context) (id, secret string, expires time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, record.DefaultTimeout)
	defer cancel()
	id, secret, err = a.Function(ctx)
	if err == nil && (id == "" || secret == "") {
		err = errors.New("the access key or its secret is empty")
	}
	if err != nil {
		return "", "", time.Time{}, fmt.Errorf("config.Config.Credentials: %w", err)
	}
	return id, secret, time.Now().Add(keepCredentials), nil
}

// NotFound adds to the error of the SDK that it finds no credentials where to give them. It returns nil for nil.
func NotFound(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: give access_key_id and secret_access_key, or what AWS's SDK looks for: variables such as "+
		"AWS_ACCESS_KEY_ID, a profile, or the role of this machine", err)
}

// DefaultRegion is that of servers that are not Amazon's unless they are told otherwise.
const DefaultRegion = "us-east-1"

// CheckRegion fails if the SDK has found no region.
func (a *Account) CheckRegion(found string) error {
	if found == "" {
		return fmt.Errorf("%s.region: missing: give that of %s, or set AWS_REGION", a.Section, a.Of)
	}
	return nil
}

// Patience is for how long a server may be silent: half of the time that a call has, so that the SDK leaves a server
// that hangs, and asks another one once more.
func (a *Account) Patience() time.Duration {
	if a.Timeout > 0 {
		return a.Timeout / 2
	}
	return record.DefaultTimeout / 2
}

// Client returns a client with the connections of t, a transport of the SDK, which may trust the authorities of
// AWS_CA_BUNDLE.
func (a *Account) Client(t *http.Transport) *http.Client {
	t.ResponseHeaderTimeout = a.Patience()
	// A request that was given up does not close a connection of HTTP/2, so that a dead one would be used again.
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: a.Patience(), PingTimeout: a.Patience()}
	return &http.Client{
		Transport: &leaving{Transport: t},
		// A request is signed for its host. An answer of S3 with another one names the region, which is in the error then.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Sender sends requests. Clients of the SDK have one.
type Sender interface {
	Do(r *http.Request) (*http.Response, error)
}

// Telling is a Sender whose answers tell the time.
type Telling struct{ Sender }

// Do implements Sender.
func (t Telling) Do(r *http.Request) (*http.Response, error) {
	answer, err := t.Sender.Do(r)
	if err == nil {
		httpdate.Tell(r, answer)
	}
	return answer, err
}

// leaving is a transport that, when a request was not answered in time, leaves the connections that no request uses,
// too: the network may have forgotten them all. Otherwise a lock could be lost by renewals that try one after the
// other. A request that its caller gave up says so only if it had some time, and no other one was answered meanwhile.
type leaving struct {
	*http.Transport
	answers atomic.Int64 // how many requests were answered
}

// silence is for how long nothing has to be answered until the network may have forgotten the connections. Callers
// whose contexts end earlier learn nothing of it, and would have those of others made again.
const silence = 100 * time.Millisecond

// RoundTrip implements http.RoundTripper.
func (l *leaving) RoundTrip(r *http.Request) (*http.Response, error) {
	began, answers := time.Now(), l.answers.Load()
	answer, err := l.Transport.RoundTrip(r)
	end, bounded := r.Context().Deadline()
	var late net.Error
	switch {
	case err == nil:
		l.answers.Add(1)
	case !errors.As(err, &late), !late.Timeout():
	case r.Context().Err() == nil, l.answers.Load() == answers && (!bounded || end.Sub(began) >= silence):
		l.CloseIdleConnections()
	}
	return answer, err
}
