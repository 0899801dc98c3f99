package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// advice says what to do about errors of etcd that no retry mends.
var advice = []struct {
	err  error
	text string
}{
	{rpctypes.ErrNoSpace, "compact and defragment etcd, or raise its quota, and then run etcdctl alarm disarm"},
	{rpctypes.ErrPermissionDenied, "grant the user's role readwrite on all keys with the prefix of the locks"},
	{rpctypes.ErrAuthFailed, "check the user name and the password"},
	{rpctypes.ErrUserEmpty, "etcd has authentication enabled: give a user name and a password"},
	{rpctypes.ErrNoLeader, "the members of etcd that are reached have no majority"},
}

// whatToDo returns the advice about an error, or "".
func whatToDo(err error) string {
	for _, a := range advice {
		if errors.Is(err, a.err) {
			return a.text
		}
	}
	return ""
}

// adviceOnTLS does the same for errors of which gRPC tells only the text.
var adviceOnTLS = []struct{ part, text string }{
	{"certificate signed by unknown authority", "set tls.ca_file to the authority of etcd's certificate"},
	{"tls: certificate required", "etcd asks clients for a certificate: set tls.cert_file and tls.key_file"},
	{"tls: unknown certificate authority", "etcd does not trust the authority of the certificate in tls.cert_file"},
	{"first record does not look like a TLS handshake", "etcd does not use TLS: write etcd://, and no section tls"},
}

// unavailable returns an error that matches locker.ErrUnavailable, about a request that was made with ctx. If the
// backend was closed meanwhile, it returns locker.ErrClosed.
func unavailable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx) // the client's error says that the context was cancelled, and not by whom
	}
	if errors.Is(err, locker.ErrClosed) {
		return err
	}
	err = rpctypes.Error(err)
	if s, ok := status.FromError(err); ok {
		err = errors.New("etcd: " + s.Message()) // without the words of gRPC
	}
	if text := whatToDo(err); text != "" {
		return fmt.Errorf("%w: %w: %s", locker.ErrUnavailable, err, text)
	}
	for _, a := range adviceOnTLS {
		if strings.Contains(err.Error(), a.part) {
			return fmt.Errorf("%w: %w: %s", locker.ErrUnavailable, err, a.text)
		}
	}
	return fmt.Errorf("%w: %w", locker.ErrUnavailable, err)
}

// unexecuted reports whether a request has certainly not been executed: etcd says so, or there was no connection over
// which it could be sent.
func unexecuted(err error) bool {
	switch code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unknown, codes.Internal:
		return false
	case codes.Unavailable:
		return errors.Is(rpctypes.Error(err), rpctypes.ErrNoLeader) ||
			strings.HasPrefix(status.Convert(err).Message(), "last connection error")
	default:
		// The lease exists by an earlier delivery of the request. When the database becomes full, etcd says so of what it
		// has executed.
		err = rpctypes.Error(err)
		return !errors.Is(err, rpctypes.ErrLeaseExist) && !errors.Is(err, rpctypes.ErrNoSpace)
	}
}

// code returns the code of an error, which etcd's client may have made one of its own of.
func code(err error) codes.Code {
	if own := (rpctypes.EtcdError{}); errors.As(err, &own) {
		return own.Code()
	}
	return status.Code(err)
}

// heldBy describes the owner of an entry, or refuses an entry that is not a lock: without a lease it would never end.
func heldBy(owner *mvccpb.KeyValue) error {
	if owner.Lease == 0 {
		return fmt.Errorf("%w: %.64q has no lease", locker.ErrForeignKey, owner.Key)
	}
	if isGrouped(owner) {
		return fmt.Errorf("%w: %.64q is of a group of permits, or of readers and writers", locker.ErrForeignKey, owner.Key)
	}
	return &locker.HeldError{Label: labelOf(owner)}
}

func labelOf(owner *mvccpb.KeyValue) string {
	if string(owner.Value) == keptValue {
		return ""
	}
	return string(owner.Value)
}

// notHeld returns the error for an entry of req that is gone, given the entries that its lock has instead. It is no
// NotHeldError with LostGone, which would leave open whether an earlier delivery of the same request has deleted the
// entry: no transaction is sent twice; see undated.
func notHeld(req backend.Request, others []*mvccpb.KeyValue) error {
	if len(others) > 0 && req.Group == nil {
		return &locker.NotHeldError{Reason: locker.LostTakenOver}
	}
	return locker.ErrNotHeld
}
