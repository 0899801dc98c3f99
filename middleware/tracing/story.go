package tracing

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/golocker/locker"
)

// maxEvents bounds what one span tells: a call may wait for hours. It is half of what SDKs keep, which drop the first ones.
const maxEvents = 64

// story is what one span tells of its operation, from any goroutine, until it ends; what comes later is not for it.
type story struct {
	span      trace.Span
	recording bool

	mu           sync.Mutex
	over         bool
	told, untold int
}

func (s *story) tell(event string, attrs ...attribute.KeyValue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
	case s.told == maxEvents:
		s.untold++
	default:
		s.told++
		s.span.AddEvent(event, trace.WithAttributes(attrs...))
	}
}

// end ends the span. kind is empty if err is no error in its eyes.
func (s *story) end(outcome, kind, key string, err error, attrs ...attribute.KeyValue) {
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
			s.span.SetStatus(codes.Error, describe(err, key))
		}
		s.span.SetAttributes(attrs...)
	}
	s.span.End()
}

// voted is for the hook of a Trace. late votes are not told of a span that has ended, but measured; of one that is pending the
// measurement is yet to come.
func (s *story) voted(m *metrics, v locker.Vote) {
	outcome, kind := ofVote(v)
	if !v.Pending {
		m.seconds(background, m.vote, v.Duration, labels{op: v.Op, outcome: outcome, kind: kind, node: v.Node})
	}
	if s.recording {
		attrs := []attribute.KeyValue{nodeName.String(v.Node), operation.String(v.Op), result.String(outcome), seconds("locker.duration", v.Duration)}
		if kind != "" {
			attrs = append(attrs, errorType.String(kind))
		}
		s.tell("locker.vote", attrs...)
	}
}
