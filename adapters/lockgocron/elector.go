package lockgocron

import (
	"context"
	"errors"

	"github.com/go-co-op/gocron/v2"

	"github.com/golocker/locker/election"
)

var errFollower = errors.New("lockgocron: this instance does not lead")

// ByElection returns an elector for gocron.WithDistributedElector: while e leads, this instance runs all jobs, and
// otherwise none. The program calls Run of e, whose OnElected waits for the end of its context.
func ByElection(e *election.Election) gocron.Elector { return elector{e} }

type elector struct{ election *election.Election }

// IsLeader implements gocron.Elector.
func (e elector) IsLeader(context.Context) error {
	if _, leads := e.election.Leading(); !leads {
		return errFollower
	}
	return nil
}
