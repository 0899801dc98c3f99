// Package s3lock keeps locks in a bucket of Amazon S3, or of another server that speaks its protocol and has
// conditional writes. A program that imports it may open URLs such as
//
//	s3://bucket/folder?region=eu-west-1
//	s3://bucket/folder?endpoint=http://minio:9000&path_style=true
//
// With a client of its own, it writes
//
//	import "github.com/golocker/locker/backends/s3lock"
//
//	l := record.New(s3lock.NewStore(client, "bucket", "folder"), record.Prefix("lock:"))
//
// Each lock is one object, a record of package record, which says what it promises and how many requests it makes.
// docs/backends/s3.md says what the bucket needs.
package s3lock

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	lockeraws "github.com/golocker/locker/internal/aws"
	"github.com/golocker/locker/record"
)

// Store implements [record.Store]. Versions are ETags. It is safe for concurrent use.
//
// Before its first write it probes whether the server keeps conditions, also those of writes at the same time: another
// server would grant one lock to several callers. That takes three requests, and some thirty more if nobody has raced
// writes in this folder for a day. As long as the probe has not succeeded, no write is sent.
type Store struct {
	client *sdk.Client
	bucket string
	folder string // with a slash behind it; empty if there is none

	open    context.Context // ends with Close
	end     context.CancelFunc
	sound   atomic.Bool // the probe has succeeded
	mu      sync.Mutex
	probing *probing // the probe in progress; nil if there is none
	running sync.WaitGroup
}

// NewStore returns the Store of the objects of a bucket whose keys begin with folder and a slash. An empty folder means
// all. It sends nothing. The client stays the caller's, with its timeouts and retries. Close ends a probe that is in
// progress.
func NewStore(client *sdk.Client, bucket, folder string) *Store {
	s := &Store{client: client, bucket: bucket}
	if folder != "" {
		s.folder = folder + "/"
	}
	s.open, s.end = context.WithCancel(context.Background())
	return s
}

// Close implements io.Closer.
func (s *Store) Close() error {
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// Skew is by how much the clocks of Amazon's servers may differ, unless [record.ClockSkew] says otherwise.
const Skew = 5 * time.Second

// ServerClock implements [record.ServerClock]. The time is the Date of an answer. Nobody knows by how much the clocks
// of servers differ that are not Amazon's.
func (s *Store) ServerClock() (resolution, skew time.Duration) {
	if !s.amazons() {
		return time.Second, 0
	}
	return time.Second, Skew
}

// amazons reports whether the client asks Amazon's servers.
func (s *Store) amazons() bool {
	o := s.client.Options()
	amazons := reflect.TypeOf(sdk.NewDefaultEndpointResolverV2())
	//nolint:staticcheck // A program may still have a resolver of the former kind.
	return o.BaseEndpoint == nil && o.EndpointResolver == nil && reflect.TypeOf(o.EndpointResolverV2) == amazons
}

// settings are those of each request, whatever the client has.
func settings(o *sdk.Options) {
	// The checksums that the SDK adds by default are unknown to some servers, which refuse them or store them as a part
	// of the text. Requests that require one still have it.
	o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
	o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
	o.HTTPClient = lockeraws.Telling{Sender: o.HTTPClient}
}

// maxText bounds what is read of an object. Records are shorter.
const maxText = 64 << 10

// Get implements [record.Store].
func (s *Store) Get(ctx context.Context, name string) (text []byte, version string, err error) {
	key := s.folder + name
	out, err := s.client.GetObject(ctx, &sdk.GetObjectInput{Bucket: &s.bucket, Key: &key}, settings)
	switch {
	case codeOf(err) == noSuchKey:
		return nil, "", nil
	case err != nil:
		return nil, "", s.explained(err)
	}
	defer out.Body.Close()
	if text, err = io.ReadAll(io.LimitReader(out.Body, maxText)); err != nil {
		return nil, "", s.explained(err)
	}
	version, err = etag(out.ETag)
	return text, version, err
}

// Create implements [record.Store].
func (s *Store) Create(ctx context.Context, name string, text []byte) (version string, err error) {
	if err := s.proven(ctx); err != nil {
		return "", err
	}
	return s.put(ctx, name, "", text)
}

// Replace implements [record.Store].
func (s *Store) Replace(ctx context.Context, name, version string, text []byte) (newVersion string, err error) {
	if version == "" { // no object has this version, and put would create one
		return "", record.ErrConflict
	}
	if err := s.proven(ctx); err != nil {
		return "", err
	}
	return s.put(ctx, name, version, text)
}

// put sends a write again for as long as the server answers that it has not executed it, and the context has time. So a
// release waits until an object that takes one write per second takes another one.
func (s *Store) put(ctx context.Context, name, version string, text []byte) (newVersion string, err error) {
	for n := 0; ; n++ {
		sent := time.Now()
		newVersion, err = s.send(ctx, name, version, text)
		if !busy(err) || !pause(ctx, n, time.Since(sent)) {
			return newVersion, err
		}
	}
}

// pause waits before a write is sent again, for the n-th time from 0, whose answer took that long. The last time is
// when there is just enough time for another one. Then pause returns false at once: the last answer says more than that
// the context has ended. Without a deadline, there are three tries.
func pause(ctx context.Context, n int, took time.Duration) bool {
	d := min(200*time.Millisecond, 50*time.Millisecond<<min(n, 2))
	d = d/2 + rand.N(d/2)
	if end, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(end)-took-took/2-5*time.Millisecond)
	} else if n == 2 {
		return false
	}
	if d <= 0 {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// retryer is that of the client, which leaves to put what it repeats: its own pauses get longer than a call.
type retryer struct{ aws.Retryer }

// IsErrorRetryable implements aws.Retryer.
func (r retryer) IsErrorRetryable(err error) bool {
	return !busy(err) && r.Retryer.IsErrorRetryable(err)
}

// send writes an object if its ETag is version, or if there is none, and version is empty.
func (s *Store) send(ctx context.Context, name, version string, text []byte) (newVersion string, err error) {
	key := s.folder + name
	in := &sdk.PutObjectInput{
		Bucket: &s.bucket, Key: &key, Body: bytes.NewReader(text), ContentType: aws.String("application/json"),
	}
	if version == "" {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = &version
	}
	out, err := s.client.PutObject(ctx, in, settings, func(o *sdk.Options) { o.Retryer = retryer{o.Retryer} })
	switch {
	case err == nil:
		return etag(out.ETag)
	case statusOf(err) == http.StatusPreconditionFailed, version != "" && codeOf(err) == noSuchKey:
		return "", record.ErrConflict
	}
	return "", s.explained(err)
}

// etag returns the version that an answer gives.
func etag(header *string) (string, error) {
	if aws.ToString(header) == "" {
		return "", errors.New("the answer has no ETag: see whether the endpoint is that of S3, and what a proxy removes")
	}
	return *header, nil
}
