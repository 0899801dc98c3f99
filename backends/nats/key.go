package nats

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

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
			return "=s" + hex.EncodeToString(sum[:])
		}
	}
	return out.String()
}

// probeKey is the key of the messages by which Verify asks.
const probeKey = "=verify"

// subject returns the subject of the messages about a lock.
func (b *Backend) subject(key string) string { return b.subjects() + encode(b.prefix+key) }

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
func (b *Backend) subjects() string { return "$KV." + b.name + "." }

// told is what the subjects begin with on which the server tells of stored messages.
func (b *Backend) told() string { return "locker." + b.name + "." }

// toldOf returns the subject on which the server tells of the messages stored on subject.
func (b *Backend) toldOf(subject string) string {
	return b.told() + strings.TrimPrefix(subject, b.subjects())
}
