package nats

import "time"

// sighting is what this process knows of the last record of a lock, and since when.
//
// A holder relies on its record for the TTL, less an allowance for clocks that run at different speeds, and counts from
// before it sent the record. This process counts the whole TTL, from after it learned of the record. When that time is
// over, the holder relies on this record no more. If it has renewed the lock, there is a record with another number,
// and what is written over the old number is refused. So a lock may be written over a record whose time is over, as
// over a free one. No time of one machine is compared with that of another.
//
// This process learns of a record by the answer to a read, or by a message. A message may be forged: it may announce a
// record that has not been sent yet, or another TTL. So a record is always read before it is written over, and the
// message counts only if it has the nonce of the record that was read. Nobody knows a nonce before the holder has sent
// the record, so the holder had sent it before the message came. The TTL is that of the record that was read.
//
// The server ends records, too, but counts their TTLs in whole seconds, and ends them some tenths of a second later.
type sighting struct {
	seq   uint64 // of the record; 0: there is none
	nonce string
	read  bool      // the record was read; false: a message was about it
	since time.Time // when this process learned of it
	over  time.Time // when its time is over; zero: it is not taken, or has no TTL
}

// is reports whether s is about r, which was read.
func (s sighting) is(r record) bool {
	return s.seq == r.seq && s.nonce == r.nonce && (s.read || s.nonce != "")
}

// saw notes that r is stored, and sets the alarm. It counts from now, when the caller has got the message or the answer
// that says so. When the request for that answer was sent, r may not have been stored yet. Call with the mutex of news
// held.
func (n *news) saw(told string, t *topic, r record, read bool) {
	now := sighting{seq: r.seq, nonce: r.nonce, read: read, since: time.Now()}
	if read && t.seen.is(r) {
		now.since = t.seen.since
	}
	if r.taken() && r.ttl > 0 {
		now.over = now.since.Add(r.ttl)
	}
	before := t.seen.over
	t.seen = now
	switch {
	case now.over.IsZero() || now.over.Equal(before):
	case t.alarm != nil:
		t.alarm.Reset(time.Until(now.over))
	default:
		t.alarm = time.AfterFunc(time.Until(now.over), func() {
			tell := func(state) {}
			n.mu.Lock()
			if n.topics[told] == t && t.seen.isOver() {
				tell = t.telling()
			}
			n.mu.Unlock()
			tell(overdue)
		})
	}
}

// read notes a record that was read, and reports whether its time is over. Nothing is noted of locks to which nobody
// listens.
func (n *news) read(told string, r record) (overdue bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.topics[told]
	if t == nil {
		return false
	}
	t.bucket = r.bucket
	n.saw(told, t, r, true)
	return t.seen.isOver()
}

// waited reports whether somebody listens.
func (n *news) waited(told string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.topics[told] != nil
}

func (s sighting) isOver() bool { return !s.over.IsZero() && !time.Now().Before(s.over) }
