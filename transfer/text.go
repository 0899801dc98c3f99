package transfer

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
	"unique"

	"github.com/golocker/locker/internal/core/passing"
)

// Text stands for a lock that was exported. Whoever has it can resume the lock, once. So it is a secret: what formats,
// encodes or logs a Text gets a placeholder, or an address if the Text is in an unexported field. [Text.Secret] returns
// the text itself, to be handed over, and [Parse] reads it. Two are equal if they stand for the same export. The zero
// value is not a Text.
type Text struct {
	// content is the owner value and the key. Package fmt prints unexported fields without the methods of their types,
	// and follows pointers to structs for some verbs, but never pointers to strings, such as this is one.
	content unique.Handle[string]
}

func newText(owner, key string) Text { return Text{unique.Make(owner + key)} }

// parts returns what t has. Both are empty if t is the zero value.
func (t Text) parts() (owner, key string) {
	if t == (Text{}) {
		return "", ""
	}
	s := t.content.Value()
	return s[:passing.OwnerLen], s[passing.OwnerLen:]
}

// Key returns the key of the lock.
func (t Text) Key() string {
	_, key := t.parts()
	return key
}

const (
	format  = "locker-lease-"
	version = "1"
	head    = format + version + "."
)

// hidden is what others see of a Text.
const hidden = "[secret of a lock]"

// Secret returns the text, which has letters, digits and the signs ., - and _. It is not long, unless the key is. Hand
// it over as you would a password.
func (t Text) Secret() string {
	if t == (Text{}) {
		return ""
	}
	b := []byte(t.content.Value())
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b)) // for texts that were cut off
	return head + base64.RawURLEncoding.EncodeToString(b)
}

// Parse reads what [Text.Secret] has returned. Spaces and line ends around it do not count. What it cannot read is an
// error that matches [ErrText], and does not contain it.
func Parse(secret string) (Text, error) {
	secret = strings.TrimSpace(secret)
	rest, ours := strings.CutPrefix(secret, format)
	v, code, ok := strings.Cut(rest, ".")
	switch {
	case secret == hidden:
		return Text{}, fmt.Errorf("%w: it is what logs have of one: hand over what its method Secret returns", ErrText)
	case !ours || !ok:
		return Text{}, fmt.Errorf("%w: it does not begin like one: hand it over whole", ErrText)
	case v != version:
		return Text{}, fmt.Errorf("%w: it has the format %.16q, and this program reads %q: resume the lock with a version "+
			"of the library like the one that has exported it", ErrText, v, version)
	}
	b, err := base64.RawURLEncoding.DecodeString(code)
	n := len(b) - crc32.Size
	if err != nil || n <= passing.OwnerLen || crc32.ChecksumIEEE(b[:n]) != binary.BigEndian.Uint32(b[n:]) {
		return Text{}, fmt.Errorf("%w: it is damaged: hand it over whole", ErrText)
	}
	owner, key := string(b[:passing.OwnerLen]), string(b[passing.OwnerLen:n])
	if !passing.IsOwner(owner) {
		return Text{}, fmt.Errorf("%w: it was made of the owner value of a lease, and not by Export", ErrText)
	}
	return newText(owner, key), nil
}

// Format writes a placeholder, whatever the verb. It implements [fmt.Formatter].
func (t Text) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte(hidden)) }

// String returns a placeholder.
func (Text) String() string { return hidden }

// LogValue returns a placeholder. It implements [slog.LogValuer].
func (Text) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText returns a placeholder, also for JSON. It implements [encoding.TextMarshaler].
func (Text) MarshalText() ([]byte, error) { return []byte(hidden), nil }
