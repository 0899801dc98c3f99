// Package lockhttp is a middleware for net/http: a handler runs while it holds the lock of its request's key. Requests
// for the same key are handled one at a time in the whole fleet.
//
//	lock := lockhttp.New(l, func(r *http.Request) string { return "orders:" + r.PathValue("id") })
//	mux.Handle("POST /orders/{id}/ship", lock(ship))
//
// The middleware stands inside of the mux, as here, if the key has values of the path. No request goes without a lock:
// an empty key is answered with 400. So wrap only handlers that need one.
//
// Any [locker.Locker] will do. With that of a semaphore, n requests per key are handled at a time. With those of
// package rwlock, wrap the handlers that read with Shared, and those that write with Exclusive. TTL and other options
// of the lock are set with [locker.Defaults].
//
// # The handler
//
// The handler finds its lease with [locker.LeaseFrom] in the context of the request, and passes the fencing token on:
//
//	lease, _ := locker.LeaseFrom(r.Context())
//	err := ship(r.Context(), r.PathValue("id"), lease.Fence())
//
// The context ends when the client leaves, as always, and when the lock is lost. The handler should stop then. Its
// reads of the body and its writes do not end with the context: ReadTimeout and WriteTimeout of the server limit them.
// The lock is released when the handler returns or panics, whether or not the client is still there. This takes at most
// a second while the store does not answer, and then goes on in the background. When a process crashes, the lock is
// free after its TTL.
//
// # Answers in place of the handler
//
//	400  the key is empty, too long or reserved
//	409  another request has the lock, and New was called without Wait
//	500  the lock was lost; or waiting does not help: the key holds something else, or this request has the lock itself
//	503  another request still has the lock after Wait; or the store is not available; or the Locker is closed
//
// With 400, 409 and 503, and with 500 if the lock was not acquired, the handler was not called. 409 and 503 come with
// Retry-After. It is the time for which the store keeps the lock unless its holder renews it, or else a second. So
// after a crash the client comes when the lock is free. A holder that lives has mostly released it long before: where
// clients obey Retry-After, choose a short TTL. [Refuse] replaces the answers, such as 409 by 423.
//
// # When the lock is lost
//
// From then on, another request may be in its handler. A request that has lost its lock is not answered with success,
// as far as the middleware can prevent it:
//
//   - If no status was sent, it is 500 instead of one below 400, and headers that the handler has set are taken back.
//   - If a status below 400 was sent, further writes fail with [locker.ErrLost], and when the handler returns, the
//     response is cut off, by a panic with [http.ErrAbortHandler]. So the client sees an error, unless it has the whole
//     response by then.
//   - A status from 400 on is the handler's own word, and stays.
//   - A connection that was hijacked is the handler's own. It closes it when the context ends.
//
// 500 says that the work may have been done in part, or by a process that stood still and overlapped with another
// request. Where that would do harm, pass the fencing token to the resource: package fence does.
//
// # Logs
//
// Answers with 500, and with 503 unless another request has the lock, are logged as warnings with slog.Default, because
// nobody else has the reason. With [Refuse], the program logs it. A response that is cut off is always logged.
//
// # Waiting
//
// With [Wait], requests wait for their turn in the order in which the store serves them. Each of them is a goroutine
// and a connection. The time should be shorter than the WriteTimeout of the server, or else nobody gets the answer. A
// client that leaves ends the wait, but on HTTP/1 the server notices that only if the request has no body.
//
// To stop a program, call Drain of the Locker and [http.Server.Shutdown] at the same time, as by
// [http.Server.RegisterOnShutdown]: requests that wait are then answered with 503, and would hold up the server
// otherwise. Those that have a lock go on. Then close the Locker.
package lockhttp
