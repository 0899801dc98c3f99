package election

import (
	"context"
	"errors"
	"fmt"
)

// errNotChecked keeps a candidate from campaigning until Config.Healthy has been called once.
var errNotChecked = errors.New("not checked yet")

var errTooSlow = errors.New("the check took longer than its interval")

// monitor calls Config.Healthy at intervals until ctx ends.
func (e *Election) monitor(ctx context.Context) {
	for ctx.Err() == nil {
		if err := e.check(ctx); ctx.Err() == nil {
			e.setHealth(err)
		}
		sleep(ctx, e.config.healthInterval())
	}
}

// check calls Config.Healthy once. If that takes too long, the candidate is not healthy before it has returned.
func (e *Election) check(ctx context.Context) error {
	bounded, cancel := context.WithTimeoutCause(ctx, e.config.healthInterval(), errTooSlow)
	defer cancel()
	late := make(chan struct{})
	stop := context.AfterFunc(bounded, func() {
		defer close(late)
		if ctx.Err() == nil {
			e.setHealth(errTooSlow)
		}
	})
	err := e.config.Healthy(bounded)
	if !stop() {
		<-late
		return errTooSlow
	}
	return err
}

// setHealth records the health of the candidate. err is nil if it may lead. If it may not, a campaign and a term end.
func (e *Election) setHealth(err error) {
	e.mu.Lock()
	was := e.unhealthy
	e.unhealthy = err
	switch {
	case err == nil && was != nil:
		close(e.healthy)
	case err != nil:
		e.unhealthy = fmt.Errorf("%w: %w", ErrUnhealthy, err)
		if was == nil {
			e.healthy = make(chan struct{})
		}
	}
	now, c := e.unhealthy, e.candidacy
	e.mu.Unlock()
	if now != nil && c != nil {
		c.cancel(now)
	}
	if now != nil && !errors.Is(was, ErrUnhealthy) { // once for each time that it becomes unhealthy
		e.config.report(e.key, now)
	}
}

// awaitHealth waits until the candidate may lead. It returns false if ctx ends first.
func (e *Election) awaitHealth(ctx context.Context) bool {
	e.mu.Lock()
	healthy := e.healthy
	e.mu.Unlock()
	select {
	case <-healthy:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
