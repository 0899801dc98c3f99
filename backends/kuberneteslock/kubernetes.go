// Package kuberneteslock keeps locks in a cluster of Kubernetes, as Leases of coordination.k8s.io/v1, by package
// record.
//
//	l, err := config.Open(ctx, "kubernetes://") // in a pod, in its namespace
//
// or, with the program's own client,
//
//	store := kuberneteslock.NewStore(clientset.CoordinationV1().Leases("default"))
//	l := record.New(store, record.Prefix("lock:"))
//
// The rest.Config of that client should have QPS: -1. Otherwise, client-go lets five requests through a second, and
// renewals wait in its queue behind all others.
//
// # What it promises
//
// What package record promises, while etcd keeps what the API server has acknowledged. A request is a compare and swap
// of one object. Reads have no resourceVersion, so the API server answers them with the most recent one.
//
// # Leases
//
// The text of the record is in an annotation. The spec only shows it, in the format of client-go's electors, so that
// kubectl get leases prints the holder. Its times are those of the holder's clock, and no lock depends on them. A lock
// that is free has a Lease without a holder.
//
// A Lease that has no annotation, or another holder than it says, belongs to somebody else, such as an elector of
// client-go. It is not touched, and its key cannot be locked: the error matches locker.ErrForeignKey.
package kuberneteslock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/golocker/locker/record"
)

// Leases is a client for the Leases of one namespace. client-go's LeaseInterface is one. The functions may be called
// concurrently. If there is also a method Watch, as that one has, waiters are told of releases, and with a method List,
// locks can be listed.
type Leases interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error)
	Create(
		ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions,
	) (*coordinationv1.Lease, error)
	Update(
		ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions,
	) (*coordinationv1.Lease, error)
}

// Store implements [record.Store]. It is safe for concurrent use.
type Store struct {
	leases    Leases
	closeIdle func()        // closes the connections that no request uses
	dated     bool          // answers tell the time
	calls     chan struct{} // has an element for each call in progress
	watches   chan struct{} // and for each watch
}

// maxCalls bounds the calls in progress, each of which has a goroutine for as long as a credential plugin hangs.
const maxCalls = 1000

// NewStore returns the Store of the Leases of a namespace. It sends nothing.
func NewStore(leases Leases) *Store {
	return &Store{
		leases: leases, closeIdle: func() {}, calls: make(chan struct{}, maxCalls), watches: make(chan struct{}, maxWatches),
	}
}

// Close implements io.Closer.
func (s *Store) Close() error {
	s.closeIdle()
	return nil
}

// ServerClock implements [record.ServerClock]. The time is the Date of an answer, if the Store is of a configuration:
// the answers to a client of a program's own are not seen. Nobody knows by how much the clocks of API servers differ.
func (s *Store) ServerClock() (resolution, skew time.Duration) {
	if !s.dated {
		return 0, 0
	}
	return time.Second, 0
}

// Get implements [record.Store].
func (s *Store) Get(ctx context.Context, name string) (text []byte, version string, err error) {
	object := objectName(name)
	lease, err := within(ctx, s, func() (*coordinationv1.Lease, error) {
		return s.leases.Get(ctx, object, metav1.GetOptions{})
	})
	if says(err, object, metav1.StatusReasonNotFound) {
		return nil, "", nil
	}
	version, err = versionOf(lease, err)
	if err != nil {
		return nil, "", err
	}
	return textOf(lease), version, nil
}

// Create implements [record.Store].
func (s *Store) Create(ctx context.Context, name string, text []byte) (version string, err error) {
	lease := newLease(objectName(name), text, 0)
	stored, err := within(ctx, s, func() (*coordinationv1.Lease, error) {
		return s.leases.Create(ctx, lease, metav1.CreateOptions{})
	})
	if says(err, lease.Name, metav1.StatusReasonAlreadyExists) {
		return "", fmt.Errorf("%w: %w", record.ErrConflict, err)
	}
	return versionOf(stored, err)
}

// Replace implements [record.Store].
//
// It names the uid, too. Without that, the API server would create a Lease that was deleted, whatever resourceVersion
// the request expects: it allows that for Leases.
func (s *Store) Replace(ctx context.Context, name, version string, text []byte) (newVersion string, err error) {
	uid, rest, _ := strings.Cut(version, "/")
	resourceVersion, count, _ := strings.Cut(rest, "/")
	transitions, err := strconv.ParseInt(count, 10, 32)
	if uid == "" || resourceVersion == "" || err != nil {
		return "", fmt.Errorf("%q is no version of a Lease", version)
	}
	lease := newLease(objectName(name), text, int32(transitions))
	lease.UID, lease.ResourceVersion = types.UID(uid), resourceVersion
	stored, err := within(ctx, s, func() (*coordinationv1.Lease, error) {
		return s.leases.Update(ctx, lease, metav1.UpdateOptions{})
	})
	if says(err, lease.Name, metav1.StatusReasonConflict, metav1.StatusReasonNotFound) {
		return "", fmt.Errorf("%w: %w", record.ErrConflict, err)
	}
	return versionOf(stored, err)
}

// within calls send, and returns when ctx ends, whatever send does: client-go runs the credential plugin of a
// kubeconfig without a context.
//
// If there was no answer in time, the network may have forgotten the connection, and then the idle ones, too. So the
// next request makes a new one.
func within[T any](ctx context.Context, s *Store, send func() (*T, error)) (answer *T, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case s.calls <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%d calls are in progress: look whether the credential plugin of the kubeconfig hangs: %w",
			maxCalls, ctx.Err())
	}
	done := make(chan struct{})
	var got *T
	var failed error
	go func() {
		defer close(done)
		defer func() { <-s.calls }()
		got, failed = send()
	}()
	select {
	case <-done:
		answer, err = got, failed
	case <-ctx.Done():
		err = fmt.Errorf("no answer from the API server, or only to try again later: %w", ctx.Err())
	}
	if errors.Is(err, context.DeadlineExceeded) {
		s.closeIdle()
	}
	return answer, err
}

// says reports whether the API server has answered with one of the reasons, about the Lease of that name. A quota, a
// webhook, a missing namespace or a proxy answers with the same codes, about something else.
func says(err error, name string, reasons ...metav1.StatusReason) bool {
	var failed apierrors.APIStatus
	if !errors.As(err, &failed) || apierrors.IsUnexpectedServerError(err) {
		return false
	}
	status := failed.Status()
	return slices.Contains(reasons, status.Reason) && status.Details != nil &&
		status.Details.Kind == "leases" && status.Details.Name == name
}

// explained adds to an error of the API server what to do about it, if that is known.
func explained(err error) error {
	var fix string
	switch {
	case apierrors.IsForbidden(err):
		fix = "the user needs the rights to get, create and update leases of coordination.k8s.io in this namespace, " +
			"and room in its quota"
	case apierrors.IsUnauthorized(err):
		fix = "renew the credentials of the kubeconfig, or the token of the service account"
	case apierrors.IsUnexpectedServerError(err):
		fix = "is this the address of an API server?"
	case apierrors.IsNotFound(err):
		fix = "create the namespace, or name another one"
	default:
		return err
	}
	return fmt.Errorf("%w: %s", err, fix)
}
