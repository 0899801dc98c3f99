package inspect

import "context"

// Examiner is implemented by stores that can tell whether their servers are fit for locks, and what to do if they are
// not. "locker doctor" asks it before it uses a lock.
//
// locker.Client always implements Examiner, and returns nothing if its backend does not. Use locker.As to find it
// behind middleware.
type Examiner interface {
	// Examine asks the servers, until ctx ends at the latest. It does not fail: servers that do not answer are a
	// finding, too. It may be called concurrently.
	Examine(ctx context.Context) []Finding
}

// Finding is the result of one check.
type Finding struct {
	Check string // the name of the check, such as "version"; several servers have a finding each
	Level Level
	Text  string // what was found, with the name of the server if there are several
	Fix   string // what to do about it; empty if Level is OK
}

// Level is the severity of a finding.
type Level string

// Warn means that a promise is weakened, or that something is not known. Fail means that locks are refused, or not
// safe.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)
