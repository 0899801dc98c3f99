package natslock

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	natsclient "github.com/nats-io/nats.go"

	"github.com/golocker/locker"
)

// news tells listeners what the server tells of stored messages. It has one goroutine, from the first listener on
// until it is closed, and one subscription for each lock that somebody listens to.
type news struct {
	moved chan struct{} // has a value when conn has been replaced

	mu       sync.Mutex
	conn     *natsclient.Conn
	msgs     chan *natsclient.Msg // nil: there was no listener yet
	statuses chan natsclient.Status
	closing  context.Context
	quit     context.CancelFunc
	over     sync.WaitGroup
	topics   map[string]*topic // by the subject on which the server tells
	closed   bool
}

// topic is the subscription about one lock.
type topic struct {
	sub       *natsclient.Subscription
	listeners []*func(state)
	bucket    string // the id of the bucket, as in the record that was read last; empty: not known
	seen      sighting
	alarm     *time.Timer // for when the time of what was seen is over; nil: no taken record was seen
}

// forget ends the alarm.
func (t *topic) forget() {
	t.seen = sighting{}
	if t.alarm != nil {
		t.alarm.Stop()
	}
}

// The states that listeners get besides those of records.
const (
	reconnected state = "reconnected" // messages may have been lost
	overdue     state = "overdue"     // the time of the last record is over, see sighting
)

// maxNews is how many messages wait for the goroutine. More are dropped, as if they were lost on the way.
const maxNews = 4096

// confirmation is how long to wait for the confirmation of a subscription. Without one, waiters poll more often, until
// the connection is lost and made again.
const confirmation = 10 * time.Second

// listen calls f with the state of each record of which the server tells on the subject told, until stop is called. If
// ready is not nil, it is called when the server has confirmed the subscription.
func (n *news) listen(told string, f func(state), ready func()) (stop func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, locker.ErrClosed
	}
	if n.msgs == nil {
		n.msgs = make(chan *natsclient.Msg, maxNews)
		n.closing, n.quit = context.WithCancel(context.Background())
		n.statuses = n.conn.StatusChanged(natsclient.CONNECTED)
		n.topics = make(map[string]*topic)
		n.over.Go(n.run)
	}
	t := n.topics[told]
	if t == nil {
		sub, err := n.conn.ChanSubscribe(told, n.msgs)
		if err != nil {
			return nil, unavailable(err)
		}
		t = &topic{sub: sub}
		n.topics[told] = t
	}
	t.listeners = append(t.listeners, &f)
	if conn := n.conn; ready != nil {
		n.over.Go(func() {
			ctx, cancel := context.WithTimeout(n.closing, confirmation)
			defer cancel()
			if conn.FlushWithContext(ctx) == nil {
				ready()
			}
		})
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		t.listeners = slices.DeleteFunc(t.listeners, func(l *func(state)) bool { return l == &f })
		if len(t.listeners) == 0 && n.topics[told] == t {
			delete(n.topics, told)
			t.forget()
			n.over.Go(func() { _ = t.sub.Unsubscribe() }) // see within
		}
	}, nil
}

// run passes the messages on.
func (n *news) run() {
	for {
		n.mu.Lock()
		statuses := n.statuses
		n.mu.Unlock()
		select {
		case m := <-n.msgs:
			n.pass(m)
		case <-statuses:
			n.reconnected()
		case <-n.moved:
			n.reconnected()
		case <-n.closing.Done():
			return
		}
	}
}

func (n *news) reconnected() {
	n.mu.Lock()
	var all []func(state)
	for _, t := range n.topics {
		t.forget() // a server that has lost its last records may have given their numbers again
		all = append(all, t.telling())
	}
	n.mu.Unlock()
	for _, tell := range all {
		tell(reconnected)
	}
}

// move goes on with another connection, after the old one was closed for good.
func (n *news) move(conn *natsclient.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	old := n.conn
	n.conn = conn
	if n.msgs == nil || n.closed {
		return
	}
	for told, t := range n.topics {
		if sub, err := conn.ChanSubscribe(told, n.msgs); err == nil { // an error says that conn is closed, too
			t.sub = sub
		}
	}
	statuses := n.statuses
	n.statuses = conn.StatusChanged(natsclient.CONNECTED)
	select {
	case n.moved <- struct{}{}: // before the old channel is closed
	default:
	}
	old.RemoveStatusListener(statuses)
}

// pass tells listeners of one message. Such a message is a hint: whoever has the right may publish others that look
// like it, it may be late, and it may come from a bucket of the same name in another domain. The last kind is told from
// the others, so that busy locks there wake nobody here.
func (n *news) pass(m *natsclient.Msg) {
	s := state(m.Header.Get(stateHeader))
	if m.Header.Get(opHeader) != "" {
		s = free
	}
	if tell := n.note(m, s); tell != nil {
		tell(s)
	}
}

// note notes what a message says, and returns the function that tells the listeners, or nil if the message is not for
// them.
func (n *news) note(m *natsclient.Msg, s state) (tell func(state)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.topics[m.Subject]
	if t == nil {
		return nil
	}
	if id := m.Header.Get(bucketHeader); id != "" && t.bucket != "" && id != t.bucket {
		return nil
	}
	seq, err := strconv.ParseUint(m.Header.Get(tellsSeq), 10, 64)
	if err == nil && seq > t.seen.seq {
		n.saw(m.Subject, t, record{State: s, seq: seq, nonce: m.Header.Get(nonceHeader), ttl: ttlOf(m.Header)}, false)
	}
	return t.telling()
}

// telling returns a function that calls the listeners. Call telling with the mutex of news held, and the function
// without it: listeners may be functions of a program, which may use the backend.
func (t *topic) telling() func(state) {
	listeners := slices.Clone(t.listeners)
	return func(s state) {
		for _, l := range listeners {
			(*l)(s)
		}
	}
}

func (n *news) close() {
	n.mu.Lock()
	n.closed = true
	if n.msgs == nil {
		n.mu.Unlock()
		return
	}
	for _, t := range n.topics {
		t.forget()
		_ = t.sub.Unsubscribe()
	}
	n.topics = nil
	n.mu.Unlock()
	n.quit()
	n.over.Wait()
	n.conn.RemoveStatusListener(n.statuses)
}

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
