package locker

// LossNotifier is an optional interface that may be implemented by a [Backend] that learns when a lock ends. If not,
// the [Client] learns of a loss by the next renewal.
type LossNotifier interface {
	// NotifyLoss calls lost when the store reports that req.Token no longer owns the lock. err matches ErrNotHeld, and is
	// preferably a *NotHeldError. req is the request of an Extend. A report may be late or missing, but never wrong: the
	// Client ends the lease, and does not ask again.
	//
	// NotifyLoss is active until stop is called. lost may be called once more after that. None of the functions blocks,
	// and stop does not call lost.
	NotifyLoss(req Request, lost func(err error)) (stop func())
}

// listen ends the lease as soon as n reports that it is lost.
func (l *lease) listen(n LossNotifier) {
	stop := n.NotifyLoss(l.req, func(err error) { _ = l.finish(&LostError{Reason: reasonOf(err)}) })
	l.mu.Lock()
	l.deafen = stop
	ended := l.err != nil
	l.mu.Unlock()
	if ended {
		stop()
	}
}
