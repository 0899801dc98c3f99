package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// Secret is a text that does not show itself: printing, logging and encoding it give [REDACTED], whatever the verb. (The
// exception is %p, which is not for texts: package fmt consults no method, and go vet objects.) Only Reveal returns it. An
// empty one prints as nothing, which shows that there is none.
type Secret string

const mask = "[REDACTED]"

// Reveal returns the secret.
func (s Secret) Reveal() string { return string(s) }

// String returns the mask.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// GoString returns the mask.
func (s Secret) GoString() string { return s.String() }

// Format writes the mask, whatever the verb: without it, %x and %d would pass by String.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText returns the mask. YAML, JSON and XML use it.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns the mask.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// UnmarshalText takes the secret. It refuses the mask: a printed configuration that was fed back has lost it.
func (s *Secret) UnmarshalText(text []byte) error {
	switch string(text) {
	case "":
		return errors.New("empty: leave it out if there is none")
	case mask:
		return errors.New("this is the mask, not the secret behind it")
	}
	*s = Secret(text)
	return nil
}
