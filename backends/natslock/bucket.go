package natslock

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
)

// bucket is the stream of the key-value bucket.
type bucket struct {
	jetstream.Stream
	batches bool   // several messages can be stored in one step
	api     string // see publishPrefix
	id      string // tells it from buckets of the same name in other domains, and from those that were deleted
}

// seal completes a message that is to be stored in the bucket. Nothing is published there without it.
func (s *bucket) seal(m *natsclient.Msg) {
	m.Subject = s.api + m.Subject
	m.Header.Set(bucketHeader, s.id)
}

var bucketRE = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// config returns the settings with which the bucket is created.
//
// The first sequence number is that which owns the time in microseconds as a token. So tokens grow even if the bucket
// was deleted and is created again. It is the only use of this machine's clock.
//
// There are no delete markers of the server (SubjectDeleteMarkerTTL), which would tell waiters of locks that have
// expired. The server adds such a marker without comparing, so that it can replace a lock that was granted in the
// moment in which the free record before it expired.
func (b *store) config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              "KV_" + b.name,
		Description:       "locks of github.com/golocker/locker",
		Subjects:          []string{b.subjects() + ">"},
		MaxMsgsPerSubject: 1,
		MaxBytes:          -1,
		MaxMsgSize:        -1,
		Discard:           jetstream.DiscardNew,
		Replicas:          b.replicas,
		FirstSeq:          firstSeq(time.Now()),
		DenyDelete:        true,
		AllowRollup:       true,
		AllowMsgTTL:       true,

		AllowAtomicPublish: true, // servers before 2.12 ignore it

		RePublish: &jetstream.RePublish{
			Source: b.subjects() + ">", Destination: b.told() + ">", HeadersOnly: true,
		},
	}
}

// firstSeq returns the first sequence number of a bucket that is created at the given time.
func firstSeq(t time.Time) uint64 { return uint64(t.UnixMicro()) / backend.MaxFences }

// creation is how far the first token of a bucket may be from the time at which it was created. The clocks
// of the server and of the machine that has asked for the bucket may differ by that much.
const creation = time.Hour

// versionOf returns the format of a bucket of locks, by the subjects on which the server tells of its messages. It
// returns an empty text if that is no such bucket.
func (b *store) versionOf(c jetstream.StreamConfig) string {
	if c.RePublish == nil {
		return ""
	}
	version, found := strings.CutSuffix(c.RePublish.Destination, "."+b.name+".>")
	if !found {
		return ""
	}
	if version == "locker" {
		return "v1"
	}
	version, _ = strings.CutPrefix(version, "locker.")
	return version
}

// misfit says what in the settings of an existing bucket makes it unfit for locks, and what to do.
func (b *store) misfit(info *jetstream.StreamInfo) error {
	c, want := info.Config, b.config()
	is := func(what, fix string, args ...any) error {
		return &advised{errors.New(what), fmt.Sprintf(fix, args...)}
	}
	off := int64(c.FirstSeq) - int64(firstSeq(info.Created))
	switch version := b.versionOf(c); {
	case version != "" && version != format:
		return is(fmt.Sprintf("its format is %s, and that of this program is %s", version, format),
			"use a program of the release that made it, or another bucket; or stop all its programs, and delete it with "+
				"nats stream rm %s", c.Name)
	case c.Sealed || c.NoAck:
		return is("it takes no changes, or does not acknowledge them", "set sealed and no_ack to false")
	case c.MaxMsgsPerSubject != 1:
		return is("it keeps a history", "set max_msgs_per_subject to 1")
	case !c.AllowMsgTTL:
		return is("it does not allow TTLs of messages, or the server is older than 2.11", "set allow_msg_ttl")
	case c.MaxAge != 0:
		return is("it removes messages by their age", "set max_age to 0")
	case c.MaxBytes > 0 && c.Discard != jetstream.DiscardNew || c.MaxMsgs > 0 && c.Discard != jetstream.DiscardNew:
		return is("it removes old messages when it is full", "set discard to new")
	case c.SubjectDeleteMarkerTTL != 0:
		return is("the server adds delete markers, which may replace a lock", "set subject_delete_marker_ttl to 0")
	case c.DiscardNewPerSubject:
		return is("it refuses to replace a record", "set discard_new_per_subject to false")
	case c.MaxMsgSize > 0:
		return is("it may refuse records because they are too long", "set max_msg_size to -1")
	case !slices.Contains(c.Subjects, want.Subjects[0]):
		return is("it does not store all locks", "set subjects to %s", want.Subjects[0])
	case c.Replicas < b.replicas:
		return is(fmt.Sprintf("%d servers keep it, and %d were asked for", c.Replicas, b.replicas),
			"set num_replicas to %d, or ask for fewer replicas", b.replicas)
	case max(off, -off) > int64(firstSeq(time.UnixMicro(0).Add(creation))):
		return is(fmt.Sprintf("tokens may fall or repeat when it is made again, because its first sequence number is %d "+
			"and not the time of its creation in microseconds, divided by %d", c.FirstSeq, backend.MaxFences),
			"use another bucket, made with the right first_seq, which was %d for this one", firstSeq(info.Created))
	case c.Retention != jetstream.LimitsPolicy:
		return is("consumers remove its messages", "set retention to limits")
	case c.Mirror != nil || len(c.Sources) > 0 || c.SubjectTransform != nil:
		return is("its messages come from elsewhere or change their subjects", "remove mirror, sources and subject_transform")
	case c.Storage != jetstream.FileStorage || c.PersistMode != jetstream.DefaultPersistMode:
		return is("a server that crashes forgets locks", "set storage to file and persist_mode to default")
	case c.AllowDirect:
		return is("replicas answer reads, perhaps with old data", "set allow_direct to false")
	case c.RePublish == nil || *c.RePublish != *want.RePublish:
		return is("waiters are not notified", "set republish to src %s, dest %s, headers_only",
			want.RePublish.Source, want.RePublish.Destination)
	}
	return nil
}

// open returns the bucket, and creates it if it does not exist.
func (b *store) open(ctx context.Context) (*bucket, error) {
	if err := b.connected(ctx); err != nil {
		return nil, err
	}
	if found := b.bucket.Load(); found != nil {
		return found, nil
	}
	switch {
	case !bucketRE.MatchString(b.name):
		return nil, fmt.Errorf("%w: the name of the bucket has other characters than letters, digits, _ and -",
			locker.ErrInvalid)
	case b.replicas < 0 || b.replicas > 5:
		return nil, fmt.Errorf("%w: Replicas(%d): 1 to 5 are possible", locker.ErrInvalid, b.replicas)
	}
	select {
	case b.opens <- struct{}{}:
		defer func() { <-b.opens }()
	case <-ctx.Done():
		return nil, unavailable(ctx.Err())
	}
	if found := b.bucket.Load(); found != nil {
		return found, nil
	}
	want := b.config()
	start := time.Now()
	stream, err := within(ctx, func() (jetstream.Stream, error) {
		stream, err := b.jet().Stream(ctx, want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			stream, err = b.jet().CreateStream(ctx, want)
			if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // created by another client meanwhile
				stream, err = b.jet().Stream(ctx, want.Name)
			}
		}
		return stream, err
	})
	if err != nil {
		b.reach.miss(start)
		return nil, unavailable(fmt.Errorf("bucket %s: %w", b.name, b.explained(err)))
	}
	info := stream.CachedInfo()
	if err := b.misfit(info); err != nil {
		return nil, unavailable(fmt.Errorf("bucket %s is not for locks: %w", b.name, err))
	}
	found := &bucket{
		Stream: stream, batches: info.Config.AllowAtomicPublish, api: b.api,
		id: strconv.FormatInt(info.Created.UnixNano(), 36),
	}
	b.bucket.Store(found)
	return found, nil
}
