package script

import "github.com/golocker/locker/drivers"

// Source is a script, for tests that call it with arguments of their own.
type Source = script

func (s *script) Command(keys []string, args ...string) drivers.Command {
	return s.call(keys, args...).Words
}
func (s *script) Text() string    { return s.source }
func (s *script) IsRelease() bool { return s.isRelease }

var (
	AcquireScript, RaiseScript, ExtendScript, ReleaseScript = acquireScript, raiseScript, extendScript, releaseScript
	EnqueueScript, ClaimScript, HandoverScript              = enqueueScript, claimScript, handoverScript
	TurnScript, TurnReleaseScript                           = turnScript, turnReleaseScript
	InspectScript, ForceScript                              = inspectScript, forceScript

	CounterText  = counterText
	Expand       = expand
	Milliseconds = milliseconds
)

const (
	AnyCounter = anyCounter
	Again      = unfinished
	AnyWaited  = waited
)
