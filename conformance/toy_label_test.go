package conformance

import (
	"cmp"
	"time"

	"github.com/golocker/locker"
)

func (l toyLock) heldError() *locker.HeldError {
	return &locker.HeldError{Remaining: max(0, time.Until(l.expires)), Label: l.label}
}

// owns reports whether req is of the owner of l.
func (s *toy) owns(l toyLock, req locker.Request) bool {
	return l.token == req.Token || s.ownsByLabel && l.label == req.Label && req.Label != ""
}

// labelOf returns the label that is stored for req.
func (s *toy) labelOf(req locker.Request) string {
	switch {
	case s.invents && req.Label == "":
		return "somebody"
	case s.firstLabelStays:
		s.first[req.Key] = cmp.Or(s.first[req.Key], req.Label)
		return s.first[req.Key]
	}
	return req.Label
}
