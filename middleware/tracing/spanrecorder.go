package tracing

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/golocker/locker/lockertrace"
)

// maxEvents is the largest number of events on one span. A call may wait for hours and have more. It is half of the
// usual limit of SDKs, which would drop the first events.
const maxEvents = 64

// spanRecorder adds events to the span of one operation until the span ends. Events after that are ignored. It is safe
// for concurrent use.
type spanRecorder struct {
	span      trace.Span
	recording bool

	mu           sync.Mutex
	over         bool
	told, untold int // number of events that were recorded, and that were dropped
}

func (s *spanRecorder) tell(event string, attrs ...attribute.KeyValue) {
	if s.tells() { // without mu, because the span is not of this package; one that has ended takes no more events
		s.span.AddEvent(event, trace.WithAttributes(attrs...))
	}
}

// tells reports whether to record an event, and counts it.
func (s *spanRecorder) tells() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return false
	case s.told == maxEvents:
		s.untold++
		return false
	}
	s.told++
	return true
}

// end ends the span. kind is the value of error.type, or empty if err does not count as an error.
func (s *spanRecorder) end(outcome, kind string, keys []string, err error, attrs ...attribute.KeyValue) {
	s.mu.Lock()
	s.over = true
	untold := s.untold
	s.mu.Unlock()
	if s.recording {
		attrs = append(attrs, result.String(outcome))
		if untold > 0 {
			attrs = append(attrs, attribute.Int("locker.events.dropped", untold))
		}
		if kind != "" {
			attrs = append(attrs, errorType.String(kind))
			s.span.SetStatus(codes.Error, describe(err, keys...))
		}
		s.span.SetAttributes(attrs...)
	}
	s.span.End()
}

// voted is called by the Voted hook of a Trace. A late vote is measured, although its span may have ended. A pending
// vote is not measured, because the node may still answer.
func (s *spanRecorder) voted(m *metrics, v lockertrace.Vote) {
	outcome, kind := ofVote(v)
	if !v.Pending {
		m.seconds(background, m.vote, v.Duration, labels{op: v.Op, outcome: outcome, kind: kind, node: v.Node})
	}
	if s.recording {
		attrs := []attribute.KeyValue{
			nodeName.String(v.Node), operation.String(v.Op), result.String(outcome),
			seconds("locker.duration", v.Duration),
		}
		if kind != "" {
			attrs = append(attrs, errorType.String(kind))
		}
		s.tell("locker.vote", attrs...)
	}
}
