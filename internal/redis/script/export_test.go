package script

import "github.com/golocker/locker/drivers"

// Source is a script, for tests that call it with arguments of their own.
type Source = script

func (s *script) Command(keys []string, args ...string) drivers.Command {
	return s.call(keys, args...).Words
}
func (s *script) Text() string {
	source, _ := s.text()
	return source
}
func (s *script) IsRelease() bool { return s.isRelease }

var (
	AcquireScript, RaiseScript, ExtendScript   = acquireScript.plain, raiseScript, extendScript
	EnqueueScript, ClaimScript, HandoverScript = enqueueScript.plain, claimScript.plain, handoverScript.plain
	TurnScript, TurnReleaseScript              = turnScript, turnReleaseScript
	ReleaseScript, VerifyScript                = releaseScript, verifyScript
	InspectScript, ForceScript                 = inspectScript, forceScript.plain
	RaiseCounterScript                         = raiseCounterScript
	ExportScript, ResumeScript                 = exportScript, resumeScript.plain

	CounterText  = counterText
	Expand       = func(name string) string { return expand(name, false) }
	Milliseconds = milliseconds
	NumbersOf    = numbersOf
)

const (
	AnyCounter = anyCounter
	Again      = unfinished
	AnyWaited  = waited
)
