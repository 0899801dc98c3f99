package nats

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
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
			_ = t.sub.Unsubscribe()
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
// without it: listeners may be functions of a program, which may use the Backend.
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

// Notify implements [locker.Notifier].
func (b *Backend) Notify(key string, wake func()) (live func() bool, stop func()) {
	var confirmed atomic.Bool
	stop, err := b.news.listen(b.toldOf(b.subject(key)), func(s state) {
		if s == reconnected {
			confirmed.Store(true)
		}
		if s == free || s == reconnected || s == overdue {
			wake()
		}
	}, func() {
		confirmed.Store(true)
		wake()
	})
	if err != nil {
		return func() bool { return false }, func() {}
	}
	return func() bool { return confirmed.Load() && b.jet().Conn().IsConnected() }, stop
}

// Watch implements inspect.Watcher.
func (b *Backend) Watch(key string, changed func()) (stop func(), err error) {
	return b.news.listen(b.toldOf(b.subject(key)), func(s state) {
		if s != extended && s != overdue {
			changed()
		}
	}, nil)
}
