package transfer

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
)

// Text stands for a lock that was exported. Whoever has it can resume the lock, once. So it is a secret: what formats,
// encodes or logs a Text gets a placeholder. [Text.Secret] returns the text itself, to be handed over, and [Parse]
// reads it. The zero value is not a Text.
type Text struct {
	key, owner string
}

// Key returns the key of the lock.
func (t Text) Key() string { return t.key }

const (
	format  = "locker-lease-"
	version = "1"
	head    = format + version + "."

	ownerLen = 27 // of an owner value; see backend.NewToken
)

// hidden is what others see of a Text.
const hidden = "[secret of a lock]"

// Secret returns the text, which has letters, digits and the signs ., - and _. It is not long, unless the key is. Hand
// it over as you would a password.
func (t Text) Secret() string {
	if t.owner == "" {
		return ""
	}
	b := []byte(t.owner + t.key)
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
	if n := len(b) - crc32.Size; err != nil || n <= ownerLen ||
		crc32.ChecksumIEEE(b[:n]) != binary.BigEndian.Uint32(b[n:]) {
		return Text{}, fmt.Errorf("%w: it is damaged: hand it over whole", ErrText)
	}
	return Text{owner: string(b[:ownerLen]), key: string(b[ownerLen : len(b)-crc32.Size])}, nil
}

// Format writes a placeholder, whatever the verb. It implements [fmt.Formatter].
func (t Text) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte(hidden)) }

// String returns a placeholder.
func (Text) String() string { return hidden }

// LogValue returns a placeholder. It implements [slog.LogValuer].
func (Text) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText returns a placeholder, also for JSON. It implements [encoding.TextMarshaler].
func (Text) MarshalText() ([]byte, error) { return []byte(hidden), nil }
