// Package audit is a middleware that writes what happens to locks into an audit log, one JSON object per line:
//
//	log, err := audit.Open("/var/log/orders/locks.jsonl")
//	if err != nil {
//		return err
//	}
//	defer log.Close()
//	l = locker.Wrap(l, log.Middleware("redis://redis.internal:6379/0"))
//
// [Line] has the fields. "locker judge" reads logs of any number of processes, and says whether the locks have kept
// their promises: see docs/audit.md. It is for that and for auditors. To learn what needs attention, use package
// middleware/logging. A configuration with the setting audit does all of the above.
//
// The log never makes a lock wait. Lines go into a buffer of a megabyte and are written in the background. While they
// cannot be written, because the disk is full, the file cannot be opened, or nobody reads a pipe, they stay there, and
// the file is opened again each second. Lines that do not fit are counted, and a line says how many they were. A file
// that was renamed or removed is opened again under its name at the next line, so a program that rotates logs need not
// tell anybody.
//
// Owner tokens are not written: they suffice to release a lock. Field grant is the beginning of the SHA-256 of one.
package audit
