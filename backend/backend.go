package backend

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"time"
)

// Backend is a store of locks. Each call makes one attempt and takes and returns plain data. Client is responsible
// for waiting, renewing, noticing losses and ordering releases. All methods may be called concurrently.
//
// If a Backend is also an io.Closer, it is closed together with its Client. From then on, Acquire locks nothing and
// fails with an error that matches ErrClosed or ErrUnavailable. conformance.RunBackend checks this and the rules below.
type Backend interface {
	// Acquire makes one attempt to lock req.Key for req.Token. The lock lasts for req.TTL from now.
	//
	//   - It returns a nil error only if the store has recorded req.Token as the owner, for at least req.TTL from the
	//     time at which Acquire was called.
	//   - It is idempotent for its token. If a client library sends the request twice, both executions grant the lock.
	//   - It returns an error that matches ErrHeld, preferably a *HeldError, only if the store answered that another
	//     owner has the lock.
	//   - It returns an error that matches ErrForeignKey if the key holds something that is not a lock.
	//   - It returns an error that matches ErrInvalid if the store cannot have a lock of that name. It sends nothing
	//     then.
	//   - All other errors match ErrUnavailable.
	//   - It returns within milliseconds of the end of ctx, whatever the store does.
	//   - It leaves nothing behind when it fails. If the outcome is unknown, the backend undoes the attempt, even if
	//     the request arrives late. The clean-up may go on after Acquire has returned and after ctx has ended. If the
	//     clean-up fails, the lock ends with its TTL.
	Acquire(ctx context.Context, req Request) (Grant, error)

	// Extend sets the end of a held lock to req.TTL from now.
	//
	//   - It never creates a lock and never shortens one.
	//   - It returns an error that matches ErrNotHeld, preferably a *NotHeldError, only if the store answered that
	//     req.Token does not own the lock. Any other error means that the outcome is unknown.
	//   - It returns within milliseconds of the end of ctx.
	Extend(ctx context.Context, req Request) error

	// Release deletes the lock if req.Token owns it. If req.Keep is positive, the lock has no owner but stays taken for
	// that long from now. During that time neither req.Token nor any other owner can extend or release it.
	//
	//   - It compares and deletes in one atomic step.
	//   - It returns an error that matches ErrNotHeld, preferably a *NotHeldError, only if the store answered that
	//     req.Token does not own the lock. Any other error means that the outcome is unknown. The backend then keeps
	//     trying in the background for a while.
	//   - It returns within milliseconds of the end of ctx. The Client gives ctx a deadline, and does not cancel it
	//     before. So Release may wait inside a client that observes deadlines, and need not watch for cancellation.
	Release(ctx context.Context, req Request) error
}

// Request tells a [Backend] which lock to act on, and for which owner.
type Request struct {
	Key   string        // 1 to MaxKey bytes, any bytes
	Token string        // the owner value of this acquisition: printable, and new for every attempt
	TTL   time.Duration // MinTTL to MaxTTL
	Fence uint64        // for Extend and Release: Grant.Fence of the acquisition; 0 for Acquire

	// Label names the holder for people, or is empty; see the option Label. It is the same in all requests of an
	// acquisition. A backend stores it with the lock, and reports it as HeldError.Label and inspect.Inspection.Label
	// for as long as this owner has the lock. It is not part of the owner: only Token is compared. A backend that
	// cannot store labels ignores it, and reports empty ones.
	//
	// It has at most 64 bytes of printable UTF-8 text, without | and +, so these can separate it from other values.
	Label string

	// Private is Grant.Private of the acquisition, for Extend and Release. It is nil for Acquire.
	Private any

	// Keep, for Release, is how long the lock stays taken after its release. 0 means not at all.
	Keep time.Duration

	// MinHold, for Acquire and Queue, is the longest Keep that the Release may ask for. A backend that bounds how long
	// locks are taken returns an error that matches ErrInvalid if it is too long.
	MinHold time.Duration

	// Fences, for Acquire, is how many fencing tokens the Client would like, at most MaxFences; 0 and 1 both mean one. It
	// is more than one while other callers of the Client wait for the lock. The backend may grant fewer; see Grant.Fences.
	// For Queue, it is Wait.Fences.
	Fences int

	// Group is nil if the request is about a lock of its own. Otherwise it is about an entry of a group. It is the same in
	// all requests of an acquisition, but for Kind, which becomes Shared. A backend gets it only if it states
	// [Capabilities].Groups, and kinds other than Permit only if it states Kinds.
	Group *Group

	// Wanted, for Extend, is nil unless the holder wants to know whether others wait for the lock; see the function
	// Wanted. A backend calls it if the store has answered so, before Extend returns. It does not block, and may be
	// called more than once. A backend that calls it states [Capabilities].AnswersWanted.
	Wanted func()
}

// MaxFences is the largest number of fencing tokens that a Client asks for at a time.
const MaxFences = 128

// Grant is the result of a successful Acquire or Queue.
type Grant struct {
	// Fence is the fencing token. It is greater than the token of every earlier grant of the key. 0 means that the
	// backend does not issue tokens.
	Fence uint64

	// Fences is how many tokens belong to this grant: Fence, Fence+1, … Fence+Fences−1. Every later grant of the key has
	// greater ones. 0 and 1 both mean one. If there are more, the Client may give the lock to several of its callers,
	// one after the other, without the store. The backend does not notice that: Extend, Release and Verify have the first
	// token, whoever has the lock.
	Fences int

	// Permits has the numbers of the permits that were granted, in ascending order, if the request was for permits.
	Permits []int

	// Private is what the backend needs to know about this grant later, such as which nodes granted it. The Client
	// passes it to Extend and Release. Most backends leave it nil. A map of leases in the backend would leak instead,
	// because only the Client knows when a lease is over.
	Private any

	// Sent is when the request was sent that set the TTL of the lock. The validity counts from then. The zero value
	// stands for the time at which Acquire or Queue was called.
	Sent time.Time

	// Token is the owner value, if it differs from that of the request. A [Queuer] that makes several attempts uses a
	// new token from [NewToken] for each. Empty means the token of the request.
	Token string
}

// NewToken returns a new owner value, which is 20 random bytes as printable text. It is for a [Queuer] that makes
// several attempts.
func NewToken() string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	var text [27]byte
	base64.RawURLEncoding.Encode(text[:], b[:])
	return string(text[:])
}
