package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golocker/locker"
	"github.com/golocker/locker/drivers"
)

// nodeError is a fault of one node, by name.
type nodeError struct {
	node string
	err  error
}

func (e *nodeError) Error() string { return e.node + ": " + e.err.Error() }

// Unwrap hides the context errors of drivers and dialers: whether the caller's context ended is not theirs to say.
func (e *nodeError) Unwrap() error {
	if errors.Is(e.err, context.Canceled) || errors.Is(e.err, context.DeadlineExceeded) {
		return nil
	}
	return e.err
}

// errGivenUp is the answer to an attempt that arrived after its own clean-up. Nobody waits for it.
var errGivenUp = errors.New("the attempt was given up before it arrived")

// decodeGrant reads the reply of acquire.lua.
func decodeGrant(reply drivers.Reply) (locker.Grant, error) {
	if e, ok := reply.(drivers.ServerError); ok {
		return locker.Grant{}, e
	}
	if r, ok := reply.([]drivers.Reply); ok && len(r) == 2 {
		code, ok1 := r[0].(int64)
		n, ok2 := r[1].(int64)
		switch {
		case !ok1 || !ok2:
		case code == 1 && n > 0:
			return locker.Grant{Fence: uint64(n)}, nil
		case code == 0:
			return locker.Grant{}, &locker.HeldError{Remaining: max(0, time.Duration(n)) * time.Millisecond}
		case code == -1:
			return locker.Grant{}, errGivenUp
		case code == -2:
			return locker.Grant{}, locker.ErrForeignKey
		}
	}
	return locker.Grant{}, unexpected(reply)
}

// decodeOwned reads the reply of extend.lua and release.lua: 0 means that the lock is not the caller's.
func decodeOwned(reply drivers.Reply) error {
	switch r := reply.(type) {
	case drivers.ServerError:
		return r
	case int64:
		switch r {
		case 0:
			return locker.ErrNotHeld
		case 1, 2:
			return nil
		}
	}
	return unexpected(reply)
}

// unexpected reports a reply of a shape that the scripts do not have: a driver that does not normalise, or a proxy that
// answers for Redis. Its text is not shown, for it may contain a token.
func unexpected(reply drivers.Reply) error {
	return fmt.Errorf("unexpected reply of type %T: not from the lock script, or not normalised by the driver", reply)
}

// refusals are error codes that Redis gives instead of executing a command.
var refusals = map[string]bool{
	"NOSCRIPT": true, "READONLY": true, "LOADING": true, "MASTERDOWN": true, "CLUSTERDOWN": true, "MOVED": true,
	"ASK": true, "TRYAGAIN": true, "CROSSSLOT": true, "NOAUTH": true, "WRONGPASS": true, "OOM": true, "MISCONF": true,
	"NOREPLICAS": true, "BUSY": true,
}

// known reports whether an error decoded from a reply leaves no doubt that the attempt has set no key. Codes not in
// refusals are treated as doubtful, NOPERM among them: a script may be stopped in the middle.
func known(err error) bool {
	var e drivers.ServerError
	if errors.As(err, &e) {
		return refusals[e.Code()]
	}
	return errors.Is(err, locker.ErrHeld) || errors.Is(err, locker.ErrForeignKey) || errors.Is(err, errGivenUp)
}
