// Package locktus gives [tusd] the locks of any [locker.Locker], so that several servers can serve the same uploads.
//
//	composer := handler.NewStoreComposer()
//	filestore.New("/shared").UseIn(composer) // or s3store, and so on
//	locktus.New(l).UseIn(composer)
//
// l is of a store that all servers share. The names of the locks are the IDs of the uploads, behind the prefix of l. If
// l is used for other things, too, give it a prefix of its own. TTL and other options of the locks are set with
// [locker.Defaults]. To stop, call Drain of l and Shutdown of the server at the same time: uploads that are under way
// go on, and a request that waits for another one is answered with 503. Then close l.
//
// # What is promised
//
// While one request reads or writes an upload, no other request does on any server, as long as its lock is valid;
// docs/safety.md has the assumptions.
//
// If a client loses its connection and comes back on another server, the old request often still has the lock. The
// server is then asked for the lock, and interrupts the old request: at once if both are on one server, and on Redis
// and PostgreSQL within a third of the TTL, as [locker.Wanted] says. tusd waits for AcquireLockTimeout, 20 s by
// default. On NATS nobody is asked: the new request fails, until tusd's NetworkTimeout has ended the old one.
//
// # What happens on a loss
//
// The request is interrupted, as if another one wanted the upload, and the client gets the status 400 with
// ERR_UPLOAD_INTERRUPTED. tus-js-client does not retry that by itself: see its option onShouldRetry. What is written
// already counts, and the client can resume. No lock stops a store of uploads in the middle of a write, or a process
// that stands still: another request may write to the upload meanwhile.
//
// # What happens after kill -9
//
// The lock ends with its TTL, 10 s by default. A request for the upload waits until then.
//
// # What happens while the store of the locks is down
//
// A request gets the status 503 with ERR_LOCK_UNAVAILABLE, and clients retry it. The answer does not say why, and
// neither does tusd's log, so the reason is logged as a warning with slog.Default. A request that has the lock goes on
// until the lease ends, and is interrupted then.
//
// [tusd]: https://github.com/tus/tusd
package locktus
