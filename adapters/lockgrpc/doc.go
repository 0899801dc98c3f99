// Package lockgrpc has interceptors for gRPC servers: a call is handled while it holds the lock of its key. Calls with
// the same key are handled one at a time in the whole fleet.
//
//	key := func(_ context.Context, _ string, req any) string {
//		if r, ok := req.(*pb.ShipRequest); ok {
//			return "orders:" + r.GetOrder()
//		}
//		return "" // other calls need no lock
//	}
//	s := grpc.NewServer(grpc.ChainUnaryInterceptor(lockgrpc.UnaryServerInterceptor(l, key)))
//
// A call whose key is empty is handled without a lock, because an interceptor sees all calls of a server. With a
// prefix, as here, the key of a request whose field is empty is not empty.
//
// Any [locker.Locker] will do: that of a semaphore lets n calls per key be handled at a time, and those of package
// rwlock many that read or one that writes. TTL and other options of the lock are set with [locker.Defaults]. With
// [Wait], calls wait for their turn. Put the interceptors behind those that check who calls.
//
// # The handler
//
// The handler finds its lease with [locker.LeaseFrom] in its context, and passes the fencing token on. The context ends
// when the client cancels or its deadline is over, and when the lock is lost. The handler should stop then. The lock is
// released when the handler returns or panics. This takes at most a second while the store does not answer, and then
// goes on in the background. When a process crashes, the lock is free after its TTL.
//
// # Codes
//
// gRPC says: Unavailable if the client can retry just the failing call, and Aborted if it should retry at a higher
// level. Many clients retry Unavailable by themselves.
//
//	Aborted           another call has the lock, and there is no Wait. It is probably about the same thing, so a
//	                  client looks at the result before it comes again
//	Aborted           the lock was lost while the handler ran, which may have done its work in part
//	Unavailable       another call still has the lock after Wait, the store is not available, or the Locker is closed
//	InvalidArgument   the key is too long or reserved
//	Internal          waiting does not help: the key holds something else, or this call has the lock itself
//	Canceled, DeadlineExceeded   the client's, while the call waited
//
// If the status has a RetryInfo, the handler was not called, and the call can be repeated. It has the time for which
// the store keeps the lock unless its holder renews it, or else a second. A holder that lives has mostly released the
// lock long before. The text of the status names neither keys nor hosts. For interceptors in front of these, the error
// matches that of the lock, such as [locker.ErrHeld], with errors.Is.
//
// # When the lock is lost
//
// From then on, another call may be in its handler. Whatever the handler of a unary call returns, the client gets
// Aborted, because nothing was sent yet. A stream may have sent messages, which stand. It sends and receives no more:
// SendMsg and RecvMsg fail, also a RecvMsg that waits for the client. When the handler returns, the stream ends with
// Aborted. A process that stood still may have overlapped with another call. Where that would do harm, pass the fencing
// token to the resource.
//
// # Logs
//
// gRPC logs no errors of calls. So a call that cannot have its lock for another reason than another call or its key,
// and one that has lost it, are logged as warnings with slog.Default.
//
// To stop a program, call Drain of the Locker and GracefulStop of the server at the same time: calls that wait are then
// refused with Unavailable, and would hold up the server otherwise. Those that have a lock go on. Then close the
// Locker.
package lockgrpc
