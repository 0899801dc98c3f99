package config

import (
	"errors"
	"regexp"
	"strings"
	"time"
)

// Duration is a time.Duration that is written with its unit, as in "10s" or "1m30s", in YAML and JSON. A bare number is
// refused, because some programs mean seconds by it and others nanoseconds.
type Duration time.Duration

// String is that of time.Duration.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler, which YAML and JSON use.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler, which YAML uses.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	switch {
	case bareNumber.Match(text):
		return errors.New("a number without a unit: write 10s or 500ms")
	case err != nil:
		return errors.New("not a duration such as 10s or 500ms")
	case v <= 0:
		return errors.New("must be more than 0: leave it out for the default")
	}
	*d = Duration(v)
	return nil
}

var bareNumber = regexp.MustCompile(`^[-+]?[0-9][0-9_.]*$`)

// UnmarshalJSON implements json.Unmarshaler, so that a bare number is explained, too.
func (d *Duration) UnmarshalJSON(data []byte) error {
	return d.UnmarshalText([]byte(strings.Trim(string(data), `"`)))
}

// or returns d, or otherwise if d is not given.
func (d Duration) or(otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return time.Duration(d)
}
