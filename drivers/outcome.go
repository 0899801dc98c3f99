package drivers

import "errors"

// Outcome returns the result of [Driver.Do] for a client that reports an error for each command of a batch. failures
// are the errors that are not refusals. If there is any, the outcome of the batch is unknown. If every command failed
// and notSent returns true for all failures, nothing was sent. Otherwise the error does not match [ErrNotSent], even if
// that of one command does, such as an error of [Config.Dial] for one of several servers.
func Outcome(replies []Reply, failures []error, notSent func(error) bool) ([]Reply, error) {
	if len(failures) == 0 {
		return replies, nil
	}
	if len(failures) < len(replies) {
		return nil, unknown(failures[0])
	}
	for _, err := range failures {
		if !notSent(err) {
			return nil, unknown(err)
		}
	}
	return nil, NotSent(failures[0])
}

// unknown returns err, or an error that matches the same but ErrNotSent.
func unknown(err error) error {
	if errors.Is(err, ErrNotSent) {
		return maybeSent{err}
	}
	return err
}

// maybeSent has no Unwrap, which would match ErrNotSent.
type maybeSent struct{ err error }

func (e maybeSent) Error() string        { return e.err.Error() }
func (e maybeSent) Is(target error) bool { return target != ErrNotSent && errors.Is(e.err, target) }
func (e maybeSent) As(target any) bool   { return errors.As(e.err, target) }
