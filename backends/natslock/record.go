package natslock

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/inspect"
)

// record is the last message on a lock's subject. Its sequence number is what the next change is compared with.
type record struct {
	State state  `json:"-"`
	Owner string `json:"owner"` // of a lock that is held; else the last one
	Label string `json:"label,omitempty"`
	Fence uint64 `json:"fence,omitempty"` // the first token; 0: that of the sequence number of this message
	Age   int64  `json:"age_ms,omitempty"`

	seq    uint64 // 0: there is no message
	nonce  string // of a record that is taken
	bucket string // the id of the bucket that the writer meant

	overdue bool // it is taken, and its time is over, see sighting
	stored  time.Time
	ttl     time.Duration // the longest time for which its writer relies on it; the server rounds it up
}

// state is the header of a message that says what it means. Watchers get only headers, and believe them. So a record of
// another format must have a state of another name.
type state string

const (
	held     state = "held"
	extended state = "extended" // still held, by the same owner
	kept     state = "kept"     // taken without an owner, because of MinHold
	free     state = "free"
	foreign  state = ""
)

// The headers of messages.
const (
	stateHeader  = "Locker-State"
	ttlHeader    = "Locker-TTL"        // of a record that is not free, in milliseconds
	nonceHeader  = "Locker-Nonce"      // of a record that is not free: a random text, which no other record has
	bucketHeader = "Locker-Bucket"     // the id of the bucket
	ownerHeader  = "Locker-Last-Owner" // of a free record
	opHeader     = "KV-Operation"      // of the key-value store
	tellsSeq     = "Nats-Sequence"     // in the messages that tell of stored ones
)

// freeFor is how long the record of a free lock stays. It spares the next acquisition a round trip.
const freeFor = 10 * time.Second

// taken reports whether nobody else can have the lock.
func (r record) taken() bool { return r.State == held || r.State == extended || r.State == kept }

// remaining is the time until the server ends the record, or 0 if that is not known. It compares clocks of two
// machines, so it is only good for deciding when to look again.
func (r record) remaining() time.Duration {
	ttl := time.Duration(seconds(r.ttl)) * time.Second
	return min(max(0, time.Until(r.stored.Add(ttl))), ttl)
}

func (r record) heldError() *locker.HeldError {
	e := &locker.HeldError{Remaining: r.remaining()}
	if r.State == held {
		e.Label = r.Label
	}
	return e
}

// firstToken returns the first of the fencing tokens that a sequence number owns. Nothing but the number is needed for
// that, so a client that does not know yet that the bucket was deleted and created again draws the right ones.
func firstToken(seq uint64) uint64 { return seq * backend.MaxFences }

// maxSeq is the greatest number of a free record over which a lock is written. So tokens are below 2⁵³, as Lua and
// JavaScript need them: within the ten seconds of a free record, no server stores 2³⁰ messages.
const maxSeq = 1<<53/backend.MaxFences - 1<<30

var errSpent = fmt.Errorf("%w: the tokens of the bucket are at 2⁵³: use another bucket", locker.ErrUnavailable)

// token returns the first fencing token of the owner.
func (r record) token() uint64 {
	if r.Fence != 0 {
		return r.Fence
	}
	return firstToken(r.seq)
}

// seconds rounds a TTL up to what the server counts in.
func seconds(ttl time.Duration) int64 { return up(ttl, time.Second) }

func up(d, unit time.Duration) int64 { return int64((d + unit - 1) / unit) }

// ttlOf reads the TTL of a record. That of a free record is in whole seconds.
func ttlOf(h natsclient.Header) time.Duration {
	if ms, err := strconv.ParseInt(h.Get(ttlHeader), 10, 64); err == nil {
		return time.Duration(ms) * time.Millisecond
	}
	s, _ := strconv.ParseInt(h.Get(jetstream.MsgTTLHeader), 10, 64)
	return time.Duration(s) * time.Second
}

// message makes the message of a record that ends after r.ttl.
func (r record) message(subject string) *natsclient.Msg {
	m := natsclient.NewMsg(subject)
	m.Header.Set(stateHeader, string(r.State))
	m.Header.Set(jetstream.MsgTTLHeader, strconv.FormatInt(seconds(r.ttl), 10))
	if r.State == free {
		m.Header.Set(opHeader, "DEL") // key-value clients see no key then
		m.Header.Set(ownerHeader, r.Owner)
		return m
	}
	m.Header.Set(nonceHeader, rand.Text())
	m.Header.Set(ttlHeader, strconv.FormatInt(up(r.ttl, time.Millisecond), 10))
	m.Data, _ = json.Marshal(r) // of texts and numbers: never fails
	return m
}

// read is the reverse of message. Messages by others are free, if they delete the key, or foreign.
func read(m *jetstream.RawStreamMsg) record {
	r := record{State: foreign}
	switch s := state(m.Header.Get(stateHeader)); {
	case m.Header.Get(opHeader) != "":
		r.State, r.Owner = free, m.Header.Get(ownerHeader)
	case (s == held || s == extended || s == kept) && json.Unmarshal(m.Data, &r) == nil && r.Owner != "":
		if r.State = s; s == extended {
			r.State = held
		}
	}
	r.seq, r.stored, r.ttl = m.Sequence, m.Time, ttlOf(m.Header)
	r.nonce, r.bucket = m.Header.Get(nonceHeader), m.Header.Get(bucketHeader)
	return r
}

// get reads the last record of a subject from the leader. Its state is free, and its sequence number 0, if there is
// none.
func (b *store) get(ctx context.Context, subject string) (record, error) {
	s, err := b.open(ctx)
	if err != nil {
		return record{}, err
	}
	start := time.Now()
	m, err := within(ctx, func() (*jetstream.RawStreamMsg, error) { return s.GetLastMsgForSubject(ctx, subject) })
	r := record{State: free}
	switch {
	case err == nil:
		r = read(m)
	case !errors.Is(err, jetstream.ErrMsgNotFound):
		return record{}, b.failed(start, err)
	}
	r.overdue = b.news.read(b.toldOf(subject), r)
	return r, nil
}

// errOld means that a read returned a record that had been replaced before.
var errOld = errors.New("a server that is no longer the leader has answered with an old record")

// settled returns the last record of subject after a change was refused that expected the number last.
//
// Unlike get, it is not deceived by a leader that has no majority. Such a leader answers reads. It also ends a record
// by its clock while a change of the record is on its way to the other servers. That change is stored if these servers
// come back. So an older record is an error, and if there is none, settled stores a free one, which only a leader with
// a majority can do. It returns errOther if another change was stored meanwhile, or is on its way.
func (b *store) settled(ctx context.Context, subject string, last uint64) (record, error) {
	r, err := b.get(ctx, subject)
	switch {
	case err != nil:
		return record{}, err
	case r.seq == 0:
		r.seq, err = b.put(ctx, subject, 0, record{State: free, ttl: freeFor})
	case r.seq < last:
		err = unavailable(errOld)
	}
	return r, err
}

// errOther means that the last message of the subject is another one than expected, or that another change of the
// subject is on its way. Nothing was changed then.
var errOther = errors.New("the record has changed meanwhile")

// unknown is an error of a request that was sent, and may have taken effect or take effect later.
type unknown struct{ error }

func (u unknown) Unwrap() error { return u.error }

// The codes of the server's refusals.
const (
	wrongSequence jetstream.ErrorCode = 10071
	changing      jetstream.ErrorCode = 10164 // another change of the subject is on its way to the replicas
)

// put stores r if the last message on subject has the sequence number last; 0 means that there is none. It returns the
// sequence number of r.
func (b *store) put(ctx context.Context, subject string, last uint64, r record) (uint64, error) {
	if r.State == held && last > maxSeq {
		return 0, errSpent
	}
	m := r.message(subject)
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	return b.publish(ctx, m)
}

// publish sends a message that is to be stored in the bucket, and returns its sequence number.
func (b *store) publish(ctx context.Context, m *natsclient.Msg) (uint64, error) {
	s, err := b.open(ctx)
	if err != nil {
		return 0, err
	}
	s.seal(m)
	start := time.Now()
	ack, err := within(ctx, func() (*jetstream.PubAck, error) {
		return b.jet().PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
	})
	var refused *jetstream.APIError
	switch {
	case err == nil:
		b.reach.stored()
		return ack.Sequence, nil
	case errors.As(err, &refused) && (refused.ErrorCode == wrongSequence || refused.ErrorCode == changing):
		return 0, errOther
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		return 0, b.failed(start, err)
	}
	return 0, unknown{b.failed(start, err)}
}

// failed converts an error of the client library, of a request that was sent at start.
func (b *store) failed(start time.Time, err error) error {
	b.reach.miss(start)
	if errors.Is(err, natsclient.ErrConnectionClosed) {
		b.bucket.Store(nil) // it belongs to that connection
	}
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, jetstream.ErrStreamNotFound) ||
		errors.Is(err, natsclient.ErrNoResponders) {
		b.bucket.Store(nil) // look again: it may have been deleted
		return unavailable(fmt.Errorf("nobody answers for the bucket %s: JetStream is off, its leader is missing, or the "+
			"bucket was deleted: %w", b.name, err))
	}
	return unavailable(b.explained(err))
}

// ownerPrefixLen is how many bytes of an owner's token are shown.
const ownerPrefixLen = 8

// inspection shows a record to people.
func (r record) inspection() inspect.Inspection {
	i := inspect.Inspection{State: inspect.Free, Fence: r.token()}
	switch r.State {
	case held:
		i.State, i.Label = inspect.Held, r.Label
		i.Held = max(0, time.Duration(r.Age)*time.Millisecond+time.Since(r.stored))
	case kept:
		i.State = inspect.Kept
	case foreign:
		return inspect.Inspection{State: inspect.Foreign}
	default:
		return i
	}
	i.Owner, i.Remaining = r.Owner[:min(ownerPrefixLen, len(r.Owner))], r.remaining()
	return i
}

// maxPlain is how long the encoded form of a key may be. The server limits a line of its protocol, which contains
// subjects, to 4 KiB.
const maxPlain = 1000

// plain says which bytes of a key are part of the subject as they are.
func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '/'
}

// encode returns the key of the bucket for a lock's key, which has any bytes. A byte that is not plain becomes = and
// two hexadecimal digits, so the key can be read and decoded. A key that is too long becomes =s and its hash. Other
// keys of the bucket that begin with = and a letter after f belong to no lock.
func encode(key string) string {
	var out strings.Builder
	for i := range len(key) {
		if c := key[i]; plain(c) {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, "=%02X", c)
		}
		if out.Len() > maxPlain {
			sum := sha256.Sum256([]byte(key))
			return hashed + hex.EncodeToString(sum[:])
		}
	}
	return out.String()
}

// probeKey is the key of the messages by which Verify asks.
const probeKey = "=verify"

// subject returns the subject of the messages about a lock.
func (b *store) subject(key string) string { return b.subjects() + encode(b.prefix+key) }

// publishPrefix is what comes before a subject of the bucket when a message is published on it. A JetStream in another
// domain, or of another account, is reached by a prefix before all subjects of its API. A message that is published
// without the prefix stays in the domain or the account of the connection, and may be stored in a bucket of the same
// name there.
func publishPrefix(o jetstream.JetStreamOptions) string {
	switch {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "" && o.APIPrefix+"." != jetstream.DefaultAPIPrefix && o.APIPrefix != jetstream.DefaultAPIPrefix:
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return ""
}

// subjects is what the subjects of the bucket begin with.
func (b *store) subjects() string { return "$KV." + b.name + "." }

// format is the version of what a bucket means: how many tokens a sequence number owns, and what messages say. Buckets
// of version 1 were told of without a version, on locker.BUCKET.>, until shortly before the first release.
const format = "v2"

// told is what the subjects begin with on which the server tells of stored messages. They are in the settings of the
// bucket, and have its version. So programs that know another version refuse the bucket, also those that look for none:
// see misfit.
func (b *store) told() string { return "locker." + format + "." + b.name + "." }

// toldOf returns the subject on which the server tells of the messages stored on subject.
func (b *store) toldOf(subject string) string {
	return b.told() + strings.TrimPrefix(subject, b.subjects())
}

// hints remembers the free records that this backend has stored last, so that an acquisition can be made in one round
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
