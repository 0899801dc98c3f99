package drivers

// Outcome is what [Driver.Do] returns for a client that reports on each command of a batch by itself. failures are the
// errors other than refusals; with any of them the outcome of the batch is unknown, unless every command has failed and
// notSent holds for each failure.
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
