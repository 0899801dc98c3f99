package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// Secret is a text that is masked: printing, logging and encoding it give [REDACTED], with every verb except %p. (For
// %p package fmt calls no method, and go vet reports an error.) Only Reveal returns the text. An empty Secret prints as
// nothing, which shows that there is none.
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

// UnmarshalText sets the secret. It refuses the mask, because a printed configuration does not contain the secret.
func (s *Secret) UnmarshalText(text []byte) error {
	switch string(text) {
	case "":
		return errors.New("empty: leave it out if there is none")
	case mask:
		return errors.New("this is the mask of a secret: write the secret itself")
	}
	*s = Secret(text)
	return nil
}
