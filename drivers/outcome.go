package drivers

// Outcome returns the result of [Driver.Do] for a client that reports an error for each command of a batch. failures
// are the errors that are not refusals. If there is any, the outcome of the batch is unknown. If every command failed
// and notSent returns true for all failures, nothing was sent.
func Outcome(replies []Reply, failures []error, notSent func(error) bool) ([]Reply, error) {
	if len(failures) == 0 {
		return replies, nil
	}
	if len(failures) < len(replies) {
		return nil, failures[0]
	}
	for _, err := range failures {
		if !notSent(err) {
			return nil, err
		}
	}
	return nil, NotSent(failures[0])
}
