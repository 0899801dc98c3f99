// Package lockcertmagic gives [certmagic], and so Caddy, the locks of any [locker.Locker]. Instances that share a
// storage obtain each certificate once.
//
//	certmagic.Default.Storage = lockcertmagic.New(&certmagic.FileStorage{Path: "/shared"}, l)
//
// The storage may be any certmagic.Storage, such as one of certificates in S3, whose own locks are then not used. l is
// of a store that all instances share. The names of the locks are those of certmagic, such as issue_cert_example.com,
// behind the prefix of l. TTL and other options of the locks are set with [locker.Defaults]. Pass certmagic one
// [Storage] per process: a lock is released through the Storage that has acquired it. Close l when the program ends,
// after the work of certmagic, and without Drain: certmagic takes locks within locks, which Drain refuses, so a
// certificate that is being obtained would fail.
//
// # What is promised
//
// While one instance obtains or renews a certificate, the others wait, as long as its lock is valid; docs/safety.md has
// the assumptions. When they get the lock, certmagic looks first whether there is still something to do. A lease renews
// itself for as long as the process runs, whatever time certmagic asks for.
//
// # What happens on a loss
//
// certmagic cannot be told in the middle of its work that a lock was lost. Another instance may obtain the same
// certificate meanwhile, which counts twice for the limits of the authority and does no other harm: the last one to
// store it wins. Unlock returns an error that matches locker.ErrLost, which certmagic logs. An attempt that certmagic
// repeats begins with the lock again: see [Storage.RenewLockLease].
//
// # What happens after kill -9
//
// The lock ends with its TTL, 10 s by default, and the next instance goes on.
//
// # What happens while the store of the locks is down
//
// Certificates that are there are served. A lock cannot be acquired, and certmagic does not repeat the first attempt to
// obtain a certificate if that fails so early. A server that may start during an outage needs middleware/retry:
//
//	l = locker.Wrap(l, retry.New(retry.For(time.Hour)))
//
// Renewals are repeated by certmagic, and begin long before a certificate ends.
//
// [certmagic]: https://github.com/caddyserver/certmagic
package lockcertmagic
