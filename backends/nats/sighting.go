package nats

import "time"

// sighting is what this process knows of the last record of a lock, and since when.
//
// A holder relies on its record for the TTL, less an allowance for clocks that run at different speeds, and counts from
// before it sent the record. This process counts the whole TTL, from after it learned that the record is stored. When
// that time is over, the holder relies on this record no more. If it has renewed the lock, there is a record with
// another number, and what is written over the old number is refused. So a lock may be written over a record whose time
// is over, as over a free one. No time of one machine is compared with that of another.
//
// The server ends records, too, but counts their TTLs in whole seconds, and ends them some tenths of a second later.
type sighting struct {
	seq  uint64    // of the record; 0: there is none
	over time.Time // when its time is over; zero: it is not taken, or has no TTL
}

// saw notes that r is stored, and sets the alarm. It counts from now, when the caller has got the message or the answer
// that says so. When the request for that answer was sent, r may not have been stored yet. Call with the mutex of news
// held.
func (n *news) saw(told string, t *topic, r record) {
	t.seen = sighting{seq: r.seq}
	if !r.taken() || r.ttl <= 0 {
		return
	}
	t.seen.over = time.Now().Add(r.ttl)
	if t.alarm != nil {
		t.alarm.Reset(r.ttl)
		return
	}
	t.alarm = time.AfterFunc(r.ttl, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.topics[told] == t && t.seen.isOver() {
			t.tell(overdue)
		}
	})
}

// read notes a record that was read. Nothing is noted of locks to which nobody listens.
func (n *news) read(told string, r record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t := n.topics[told]; t != nil && r.seq != t.seen.seq {
		n.saw(told, t, r)
	}
}

// overdue returns the number of the last record, if its time is over. Otherwise it returns 0.
func (n *news) overdue(told string) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t := n.topics[told]; t != nil && t.seen.isOver() {
		return t.seen.seq
	}
	return 0
}

func (s sighting) isOver() bool { return !s.over.IsZero() && !time.Now().Before(s.over) }
