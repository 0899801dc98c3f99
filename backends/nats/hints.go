package nats

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// hints remembers the free records that this Backend has stored last, so that an acquisition can be made in one round
// trip. A wrong hint costs one. It is not told of those of others: nothing but an answer of the store is believed about
// what is written over. Keys share the slots by their hash; there is no clean-up.
type hints struct{ slots [256]atomic.Pointer[hint] }

type hint struct {
	subject string
	seq     uint64
	until   time.Time // when the record ends
}

var seed = maphash.MakeSeed()

func (hs *hints) slot(subject string) *atomic.Pointer[hint] {
	return &hs.slots[maphash.String(seed, subject)%uint64(len(hs.slots))]
}

// put records that the last message on subject is a free record.
func (hs *hints) put(subject string, seq uint64) {
	hs.slot(subject).Store(&hint{subject, seq, time.Now().Add(freeFor)})
}

// get returns the sequence number of the free record of subject, or 0 if none is known. It forgets what it returns,
// because the caller is about to replace the record.
func (hs *hints) get(subject string) uint64 {
	slot := hs.slot(subject)
	h := slot.Load()
	if h == nil || h.subject != subject || time.Now().After(h.until) || !slot.CompareAndSwap(h, nil) {
		return 0
	}
	return h.seq
}
