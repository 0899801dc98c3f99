package history

import (
	"fmt"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/golocker/locker/internal/judge"
)

// The model is a second opinion. It describes a lock as a sequential object: it has one holder at a time, and a token
// that grows. The checker looks for a moment within each operation at which it took effect, so that all operations are
// legal in that order.
//
// A hold without a successful release ends by itself: by expiry, or by a release whose answer was lost. The model has
// an operation for that, with bounds on both sides. Without an upper bound, illegal histories could not be decided in
// practice, because the end could come at any later time, and the checker would try all orders.

type modelState struct {
	holder int // index of a hold + 1; 0: free
	fence  uint64
}

type modelOp struct {
	kind  modelKind
	hold  int // index + 1
	fence uint64
}

type modelKind int

const (
	begins modelKind = iota
	verified
	ends
)

var lockModel = porcupine.Model{
	Init: func() any { return modelState{} },
	Step: func(state, input, _ any) (bool, any) {
		s, op := state.(modelState), input.(modelOp)
		switch op.kind {
		case begins:
			return s.holder == 0 && op.fence > s.fence, modelState{op.hold, op.fence}
		case verified:
			return s.holder == op.hold, s
		default:
			return s.holder == op.hold, modelState{0, s.fence}
		}
	},
	Hash: func(state any) uint64 { s := state.(modelState); return s.fence<<8 ^ uint64(s.holder) },
}

// modelPatience is how long the model may take for one key. If it takes longer, this counts as a violation.
const modelPatience = 20 * time.Second

// CheckModel checks the history of each key against the model, and returns a violation (MODEL) for each key whose
// history is illegal. linger is how long after its last event a lock may stay taken if nobody extends or releases it:
// the TTL plus the greatest delay of a message. CheckModel must not be called in virtual time.
func (h *History) CheckModel(linger time.Duration) (found []Violation) {
	keys, byKey := h.read().Holds(h.start)
	add := func(format string, args ...any) {
		found = append(found, Violation{Rule: "MODEL", Text: fmt.Sprintf(format, args...)})
	}
	for _, key := range keys {
		switch porcupine.CheckOperationsTimeout(lockModel, operations(byKey[key], linger), modelPatience) {
		case porcupine.Ok:
		case porcupine.Illegal:
			add("key %s: no order of the %d holds makes sense", key, len(byKey[key]))
		default:
			add("key %s: %d holds were not decided within %v", key, len(byKey[key]), modelPatience)
		}
	}
	return found
}

func operations(hs []*judge.Hold, linger time.Duration) []porcupine.Operation {
	ops := make([]porcupine.Operation, 0, 2*len(hs))
	for i, h := range hs {
		from, to := min(h.Until, h.Unlock), h.Until+linger
		switch {
		case h.Released != judge.Never:
			from, to = h.Unlock, h.Released
		case h.NotHeld != judge.Never:
			to = max(from, h.NotHeld)
		case h.Unlock != judge.Never:
			to = max(to, h.Unlock+linger)
		}
		client, _ := strconv.Atoi(h.File)
		add := func(kind modelKind, call, ret time.Duration) {
			ops = append(ops, porcupine.Operation{ClientId: client, Input: modelOp{kind, i + 1, h.Fence},
				Call: int64(call), Return: int64(ret)})
		}
		add(begins, h.Call, h.Return)
		for _, e := range h.Verified {
			add(verified, e.Asked, e.Answered)
		}
		add(ends, from, to)
	}
	return ops
}
