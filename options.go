package locker

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/golocker/locker/internal/core/label"
	"github.com/golocker/locker/internal/core/several"
)

const (
	// DefaultTTL is the lease time without a [TTL] option.
	DefaultTTL = 10 * time.Second

	// MinTTL is the shortest lease time. With a shorter one, the allowance for clock drift and one round trip would use
	// up the lease.
	MinTTL = 10 * time.Millisecond

	// MaxTTL is the longest lease time. A crashed holder blocks the lock for the lease time, and a holder that runs
	// renews its lease, so a longer one is a mistake.
	MaxTTL = 24 * time.Hour

	// DefaultPatience is how long a waiting Lock tolerates a failing store without a [Patience] option.
	DefaultPatience = 6 * time.Second

	// MaxKey is the length of the longest key, in bytes.
	MaxKey = 64 << 10
)

// Option changes one call of Lock or TryLock, and [TTL] also one of [Lease.Extend]. Use [Defaults] to set options for
// all calls of a Locker.
type Option func(*options)

type options struct {
	ttl       time.Duration
	noRenewal bool
	maxHold   time.Duration
	minHold   time.Duration
	patience  time.Duration
	label     string
	noLocal   bool
	from      *stack
	forExtend bool // the option that was applied last is also one of Extend

	// The following are nil except for a lock of a several.Partial; see Client.waiting.
	partial *several.Partial
	asked   *options // what the lease is to have once its caller has all locks

	entry *several.Entry // what the call asks for of a group, or nil if it asks for a lock
}

var defaultOptions = options{ttl: DefaultTTL, patience: DefaultPatience, label: label.Default}

// TTL sets the lease time, which is how long the lock stays taken after its holder has died. It must be between
// [MinTTL] and [MaxTTL]. The default is [DefaultTTL]. With any other value the call fails before it sends anything. In
// a call of [Lease.Extend], it is the lease time from then on, and the default is that of the lease.
func TTL(d time.Duration) Option {
	return func(o *options) { o.ttl, o.forExtend = d, true }
}

// NoRenewal switches automatic renewal off: the lease ends after its TTL, unless Extend is called. Without NoRenewal, a
// lease is renewed every third of its TTL for as long as it is held.
func NoRenewal() Option {
	return func(o *options) { o.noRenewal = true }
}

// Renewal switches automatic renewal on, which is the default. It is for one call of a Locker whose [Defaults] have
// NoRenewal.
func Renewal() Option {
	return func(o *options) { o.noRenewal = false }
}

// MaxHold limits how long the lease is held. When d has passed since the acquiring request was sent, the lease ends as
// lost, with the reason [LostMaxHold], and is no longer renewed. Done is closed before that time: by 1 % of d, at most
// 50 ms, and one millisecond more. Until is never later than that time. MaxHold is a limit for work that hangs. d is 0,
// the default, for no limit, or at least [MinTTL]. With any other value the call fails before it sends anything.
//
// MaxHold does not release the lock, because the code that it protects may still be running. That code has the rest of
// the TTL to stop. Unlock still releases the lock, and its result means the same as without MaxHold.
func MaxHold(d time.Duration) Option {
	return func(o *options) { o.maxHold = d }
}

// MinHold keeps the lock taken for at least d, counted from when the acquiring request was sent. An earlier Unlock ends
// the lease at once, but the lock stays taken, without an owner, for the rest of the time. The store enforces this, so
// the process may exit after Unlock. d is between 0, the default, and [MaxTTL]. With any other value the call fails
// before it sends anything.
//
// MinHold is for jobs that start at the same time of day on several machines and may take less time than the clocks of
// these machines differ. Without it, a machine whose clock is behind finds the lock free again and runs the job a
// second time. MinHold takes effect only when Unlock still finds the lock, which may be after MaxHold. Otherwise the
// lock ends with its TTL.
//
// On a store without CountsTime of backend.Capabilities, a process that sees the lock for the first time has to wait
// for d, however long ago the lock was released. So a job that is a new process each time, or looks with TryLock
// for the first time, never runs again. Use package once for it: nobody has to watch a tick.
func MinHold(d time.Duration) Option {
	return func(o *options) { o.minHold = d }
}

// Patience sets how long Lock tolerates a failing store while it waits for a lock that it has seen held. A store fails
// if it cannot be reached, does not answer, or refuses. Lock returns the error d after the first failed contact, unless
// the store has answered in between. With 0, it returns the first failure. The default is [DefaultPatience]. With a
// negative value the call fails before it sends anything. While other callers of the same [Client] are ahead, only the
// first of them asks the store. Its contacts count for the others, from their calls on, and each has its own patience.
//
// Patience has no effect on TryLock, nor on a Lock that finds the store failing from the start: both return the error
// at once.
func Patience(d time.Duration) Option {
	return func(o *options) { o.patience = d }
}

// Label sets a text that tells people who holds the lock. Other callers find it in [HeldError], and operators in
// inspect.Inspection and on the command line. It has no effect on who owns the lock, and several holders may have the
// same label. The default is the name of the host and the process ID, such as web-7:4211. An empty text switches the
// label off.
//
// A label has at most 64 bytes of printable UTF-8 text, without | and +. With any other text the call fails before it
// sends anything. Everybody who asks for the lock can see the label, and it may appear in their logs.
func Label(text string) Option {
	return func(o *options) { o.label = text }
}

// NoLocalHandover keeps the lock from being handed over within the process. Without it, if several callers of one
// [Client] wait for a lock, Unlock gives it to the next of them without asking the store, for up to 50 ms or a
// twentieth of the TTL since the store granted it, whichever is shorter. This spares three round trips each time, and
// each caller has a lease and a fencing token of its own, as always. But callers in other processes may have to wait
// for that much longer, although they came before, and for the last of these callers to unlock, which may hold the lock
// for long. With NoLocalHandover, callers of all processes get the lock in the order in which the store serves them.
//
// A lock is never handed over within the process if it was acquired with other values of [TTL], [Label] or [NoRenewal]
// than the next caller's, with [MaxHold] or [MinHold], by TryLock, or as one of several locks of [LockAll], after an
// Extend with a TTL or a [Bind], after a renewal that has failed, or if the store cannot issue several tokens at once.
func NoLocalHandover() Option {
	return func(o *options) { o.noLocal = true }
}

// Caller keeps where the call comes from, for people: the function, the file and the line are then in inspect.OwnLease
// and inspect.OwnWait, which package lockdebug shows. It costs a microsecond or two, and 256 bytes for as long as the
// lock is held or waited for.
func Caller() Option {
	return func(o *options) {
		o.from = new(stack)
		runtime.Callers(2, o.from[:])
	}
}

// stack has the program counters of a call and its callers. The rest is zero.
type stack [32]uintptr

// library is what the names of the functions of this module begin with.
const library = "github.com/golocker/locker"

// String returns the function that is not of this library, its file and its line, or those of the last function if all
// are.
func (s *stack) String() string {
	if s == nil {
		return ""
	}
	calls := s[:]
	if end := slices.Index(calls, 0); end >= 0 {
		calls = calls[:end]
	}
	text := ""
	for frames := runtime.CallersFrames(calls); ; {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "runtime.") && f.Function != "" {
			text = fmt.Sprintf("%s %s:%d", f.Function, f.File, f.Line)
		}
		rest, ours := strings.CutPrefix(f.Function, library)
		if !more || !ours || !strings.HasPrefix(rest, ".") && !strings.HasPrefix(rest, "/") {
			return text
		}
	}
}

// alone reports whether the lease must not be shared with callers that come later: the options count from its
// acquisition.
func (o *options) alone() bool { return o.noRenewal || o.minHold > 0 || o.maxHold > 0 }

func newOptions(opts []Option) options {
	if len(opts) == 0 {
		return defaultOptions
	}
	o := new(options) // allocated only here: an Option may keep the pointer
	*o = defaultOptions
	for _, opt := range opts {
		opt(o)
	}
	return *o
}

// extension returns the TTL that opts give an extension, of which there must be at least one.
func extension(key string, opts []Option) (time.Duration, error) {
	o := defaultOptions
	for _, opt := range opts {
		o.forExtend = false
		if opt(&o); !o.forExtend {
			return 0, invalid("Extend has no other option than TTL")
		}
	}
	return o.ttl, o.validate(key)
}

func (o *options) validate(key string) error {
	switch {
	case key == "":
		return invalid("the key is empty")
	case len(key) > MaxKey:
		return invalid("the key has %d bytes, more than the %d allowed", len(key), MaxKey)
	case o.ttl < MinTTL:
		return invalid("TTL %v is below the minimum of %v", o.ttl, MinTTL)
	case o.ttl > MaxTTL:
		return invalid("TTL %v is above the maximum of %v", o.ttl, MaxTTL)
	case o.maxHold < 0:
		return invalid("MaxHold %v is negative", o.maxHold)
	case o.maxHold > 0 && o.maxHold < MinTTL:
		return invalid("MaxHold %v is below the minimum of %v", o.maxHold, MinTTL)
	case o.minHold < 0:
		return invalid("MinHold %v is negative", o.minHold)
	case o.patience < 0:
		return invalid("Patience %v is negative", o.patience)
	case o.minHold > MaxTTL:
		return invalid("MinHold %v is above the maximum of %v", o.minHold, MaxTTL)
	}
	if err := label.Check(o.label); err != nil {
		return invalid("Label %.64q: %w", o.label, err)
	}
	return nil
}

// invalid makes an error that matches ErrInvalid.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
