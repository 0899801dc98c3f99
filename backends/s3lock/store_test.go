package s3lock_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backends/s3lock"
	"github.com/golocker/locker/internal/aws"
	"github.com/golocker/locker/internal/testing/datetest"
	"github.com/golocker/locker/record"
)

// once makes a client send each request once, so that tests need not wait for its pauses.
func once(o *sdk.Options) { o.RetryMaxAttempts = 1 }

// What the server answers decides whether a call has found no object, a conflict, or something that leaves the outcome
// open. Errors that last until somebody does something say what to do.
func TestAnswers(t *testing.T) {
	t.Parallel()
	s := start(t)
	store := s.store(t, once)
	if _, err := store.Create(t.Context(), "sound", []byte("{}")); err != nil { // the probe has succeeded
		t.Fatal(err)
	}
	elsewhere := refusal(http.StatusMovedPermanently, "PermanentRedirect")
	elsewhere.header = map[string]string{"x-amz-bucket-region": "eu-west-3"}
	html := func(status int) *answer {
		return &answer{status: status, body: "<html><body>Welcome to nginx!</body></html>"}
	}
	for name, c := range map[string]struct {
		answer   *answer
		none     bool // for Get: there is no object
		create   bool // for Create: a conflict
		replace  bool // for Replace: a conflict
		contains string
	}{
		"no object": {refusal(404, "NoSuchKey"), true, false, true, "NoSuchKey"},
		"condition": {refusal(412, "PreconditionFailed"), false, true, true, "PreconditionFailed"},
		"condition without a text": {
			&answer{status: 412}, false, true, true, "Precondition",
		},
		"no bucket":       {refusal(404, "NoSuchBucket"), false, false, false, `create the bucket "locks"`},
		"404 of a server": {html(404), false, false, false, "see whether the endpoint is that of S3"},
		"404, empty":      {&answer{status: 404}, false, false, false, "see whether the endpoint is that of S3"},
		"405":             {&answer{status: 405}, false, false, false, "see whether the endpoint is that of S3"},
		"other writer": {
			refusal(409, "ConditionalRequestConflict"), false, false, false, "ConditionalRequestConflict",
		},
		"no right": {
			refusal(403, "AccessDenied"), false, false, false,
			"grant s3:GetObject and s3:PutObject on s3://locks/team/*, and s3:ListBucket on the bucket",
		},
		"no user":          {refusal(403, "InvalidAccessKeyId"), false, false, false, "correct the credentials"},
		"wrong secret":     {refusal(403, "SignatureDoesNotMatch"), false, false, false, "correct the credentials"},
		"expired":          {refusal(400, "ExpiredToken"), false, false, false, "correct the credentials"},
		"clock":            {refusal(403, "RequestTimeTooSkewed"), false, false, false, "set the clock of this machine"},
		"region":           {elsewhere, false, false, false, `set the region to that of the bucket "locks" (eu-west-3)`},
		"region, unnamed":  {refusal(400, "AuthorizationHeaderMalformed"), false, false, false, "set the region"},
		"slow down":        {refusal(503, "SlowDown"), false, false, false, "give a longer poll"},
		"too many":         {refusal(429, "TooManyRequests"), false, false, false, "give a longer poll"},
		"internal error":   {refusal(500, "InternalError"), false, false, false, "InternalError"},
		"not implemented":  {refusal(501, "NotImplemented"), false, false, false, "no conditional writes"},
		"without an ETag":  {&answer{status: 200}, false, false, false, "no ETag"},
		"a page instead":   {html(200), false, false, false, "no ETag"},
		"an error as text": {&answer{status: 200, body: refusal(200, "InternalError").body}, false, false, false, ""},
	} {
		s.answer(func(*http.Request) *answer { return c.answer })
		_, version, err := store.Get(t.Context(), "k")
		if none := version == "" && err == nil; none != c.none {
			t.Errorf("%s: Get: version %q, %v", name, version, err)
		}
		if err != nil && (errors.Is(err, record.ErrConflict) || !strings.Contains(err.Error(), c.contains)) {
			t.Errorf("%s: Get: %v, expected %q", name, err, c.contains)
		}
		for op, call := range map[string]func() (string, error){
			"Create":  func() (string, error) { return store.Create(t.Context(), "k", []byte("{}")) },
			"Replace": func() (string, error) { return store.Replace(t.Context(), "k", `"0"`, []byte("{}")) },
		} {
			_, err := call()
			conflict := op == "Create" && c.create || op == "Replace" && c.replace
			switch {
			case err == nil || errors.Is(err, record.ErrConflict) != conflict:
				t.Errorf("%s: %s: %v, expected a conflict: %v", name, op, err, conflict)
			case !conflict && !strings.Contains(err.Error(), c.contains):
				t.Errorf("%s: %s: %v, expected %q", name, op, err, c.contains)
			}
		}
	}
}

// A host that nobody knows may be the name of the bucket before that of a server.
func TestHostThatNobodyKnows(t *testing.T) {
	t.Parallel()
	s := start(t)
	store := s.store(t, func(o *sdk.Options) {
		o.HTTPClient = &http.Client{Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.DNSError{Err: "no such host", Name: "locks.minio", IsNotFound: true}
			},
		}}
	})
	_, _, err := store.Get(t.Context(), "k")
	if err == nil || !strings.Contains(err.Error(), "correct the endpoint, or set path_style") {
		t.Error(err)
	}
}

// A write beside another one is sent again, and so are requests that the server has no time for.
func TestRequestsAreRepeated(t *testing.T) {
	t.Parallel()
	for _, a := range []*answer{
		refusal(409, "ConditionalRequestConflict"), refusal(409, "OperationAborted"), refusal(500, "InternalError"),
	} {
		s := start(t)
		store := s.store(t)
		version, err := store.Create(t.Context(), "k", []byte(`{"n":1}`))
		if err != nil {
			t.Fatal(err)
		}
		var n atomic.Int32
		s.answer(func(*http.Request) *answer {
			if n.Add(1) == 1 {
				return a
			}
			return nil
		})
		next, err := store.Replace(t.Context(), "k", version, []byte(`{"n":2}`))
		if err != nil || next == version || n.Load() != 2 {
			t.Errorf("after one %s: %q, %v, %d requests", a.body, next, err, n.Load())
		}
		if _, err := store.Replace(t.Context(), "k", version, []byte(`{"n":3}`)); !errors.Is(err, record.ErrConflict) {
			t.Errorf("after one %s: %v, expected a conflict", a.body, err)
		}
	}
}

// Some servers accept one write of an object per second, and answer that there were too many before they look at the
// condition of another one. Locks are taken and released, though slowly.
func TestObjectsThatTakeOneWritePerSecond(t *testing.T) {
	t.Parallel()
	const second = 200 * time.Millisecond
	s := start(t)
	var mu sync.Mutex
	last := make(map[string]time.Time)
	s.answer(func(r *http.Request) *answer {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Method != http.MethodPut:
		case time.Since(last[r.URL.Path]) < second:
			return refusal(429, "TooManyRequests")
		case !s.compared(r):
			return refusal(412, "PreconditionFailed")
		default:
			last[r.URL.Path] = time.Now()
		}
		return nil
	})
	for range 2 {
		l := s.lockClient(t)
		for range 3 {
			lease, err := l.Lock(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(lease.Extend(t.Context()), lease.Unlock(t.Context())); err != nil {
				t.Error(err)
			}
		}
	}
}

// A lock is one object in the folder. An acquisition takes a read and a write, or only the write if the same process
// has released the lock, and extensions and releases take a write. Nothing is listed or deleted.
func TestRequestsAndObjects(t *testing.T) {
	t.Parallel()
	s := start(t)
	l := s.lockClient(t)
	lease, err := l.TryLock(t.Context(), "büro 7", locker.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	object := "/locks/" + keyOf("büro 7")
	get, put := "GET "+object, "PUT "+object
	want := func(what string, probes int, want ...string) {
		t.Helper()
		all, probe := s.requests()
		if !slices.Equal(all, want) || probe != probes {
			t.Errorf("%s: %v and %d of the probe, expected %v and %d", what, all, probe, want, probes)
		}
		s.set(func() { s.seen = nil })
	}
	want("an acquisition", 1+8+2+3*8+1, get, put)
	if text := s.text(keyOf("büro 7")); !strings.Contains(text, `"state":"held"`) {
		t.Errorf("the object is %q", text)
	}
	head, err := s.client(t).HeadObject(t.Context(), &sdk.HeadObjectInput{
		Bucket: new(bucket), Key: new(keyOf("büro 7")),
	})
	if err != nil || head.ContentType == nil || *head.ContentType != "application/json" {
		t.Errorf("HeadObject: %v, %v", head, err)
	}
	s.set(func() { s.seen = nil })
	if err := lease.Extend(t.Context()); err != nil {
		t.Error(err)
	}
	want("an extension", 0, put)
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	want("a release", 0, put)
	if lease, err = l.TryLock(t.Context(), "büro 7"); err != nil {
		t.Fatal(err)
	}
	want("an acquisition after a release", 0, put)
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// Somebody who has deleted a record in a bucket with versions has left a marker. There is no object then.
func TestVersionedBuckets(t *testing.T) {
	t.Parallel()
	s := start(t)
	store := s.store(t)
	_, err := s.client(t).PutBucketVersioning(t.Context(), &sdk.PutBucketVersioningInput{
		Bucket:                  new(bucket),
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	})
	if err != nil {
		t.Fatal(err)
	}
	version, err := store.Create(t.Context(), "k", []byte(`{"n":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if version, err = store.Replace(t.Context(), "k", version, []byte(`{"n":2}`)); err != nil {
		t.Fatal(err)
	}
	s.delete("team/k")
	if _, v, err := store.Get(t.Context(), "k"); v != "" || err != nil {
		t.Errorf("Get after a deletion: %q, %v", v, err)
	}
	if _, err := store.Replace(t.Context(), "k", version, []byte(`{"n":3}`)); !errors.Is(err, record.ErrConflict) {
		t.Errorf("Replace after a deletion: %v, expected a conflict", err)
	}
	if _, err := store.Create(t.Context(), "k", []byte(`{"n":4}`)); err != nil {
		t.Errorf("Create after a deletion: %v", err)
	}
}

// A version that nothing has is a conflict, and not a missing condition.
func TestNoVersionIsAConflict(t *testing.T) {
	t.Parallel()
	s := start(t)
	store := s.store(t)
	if _, err := store.Replace(t.Context(), "k", "", []byte("{}")); !errors.Is(err, record.ErrConflict) {
		t.Errorf("%v, expected a conflict", err)
	}
	if all, probe := s.requests(); len(all)+probe > 0 {
		t.Errorf("requests: %v and %d of the probe", all, probe)
	}
}

// Processes that look once take locks by the dates of answers, and so of errors such as that there is no object.
func TestDates(t *testing.T) {
	t.Parallel()
	s := start(t)
	datetest.Run(t, func(t testing.TB, via func(aws.Sender) aws.Sender) record.Store {
		return s.store(t, func(o *sdk.Options) { o.HTTPClient = via(o.HTTPClient) })
	})
}

// Only of Amazon's servers it is known by how much their clocks differ.
func TestSkewOfAmazons(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(o *sdk.Options)
		want   time.Duration
	}{
		"Amazon":   {func(*sdk.Options) {}, s3lock.Skew},
		"endpoint": {func(o *sdk.Options) { o.BaseEndpoint = new(string) }, 0},
		"resolver": {func(o *sdk.Options) { o.EndpointResolverV2 = struct{ sdk.EndpointResolverV2 }{} }, 0},
		"former resolver": {func(o *sdk.Options) {
			o.EndpointResolver = sdk.EndpointResolverFromURL("http://minio:9000") //nolint:staticcheck // programs have it
		}, 0},
	} {
		store := s3lock.NewStore(sdk.New(sdk.Options{Region: "eu-west-1"}, c.change), bucket, "")
		if resolution, skew := store.ServerClock(); resolution != time.Second || skew != c.want {
			t.Errorf("%s: %v, %v", name, resolution, skew)
		}
	}
}
