package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
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

// Addrs are addresses of servers, each host or host:port, as [CheckAddr] accepts them. A file has a list of them, or a
// text with commas between them; a variable has the text. [Config.Validate] checks those that are given. Whether there
// must be any is for the Check of the backend to say.
type Addrs []string

// String returns the addresses with commas between them.
func (a Addrs) String() string { return strings.Join(a, ",") }

// splitAddrs is the reverse of String.
func splitAddrs(text string) (a Addrs) {
	for addr := range strings.SplitSeq(text, ",") {
		a = append(a, strings.TrimSpace(addr))
	}
	return a
}

// full returns the addresses with their ports. If defaultPort is empty, addresses without a port stay so.
func (a Addrs) full(defaultPort string) (full []string, err error) {
	if len(a) == 0 {
		return nil, fmt.Errorf("missing: write %s, and others after commas", withPort("host", defaultPort))
	}
	for i, each := range a {
		addr, err := hostPort(each, defaultPort)
		switch {
		case errors.Is(err, errList):
			return nil, errors.New("separated by something else than commas: write h1,h2,h3")
		case err != nil && len(a) > 1:
			return nil, fmt.Errorf("number %d: %w", i+1, err)
		case err != nil:
			return nil, err
		case slices.Contains(full, addr):
			return nil, errors.New("the same address twice: remove one")
		}
		full = append(full, addr)
	}
	return full, nil
}

// parseAddrs takes the addresses from the host of a URL.
func parseAddrs(host, defaultPort string) (a Addrs) {
	if host == "" {
		return nil // the check reports that they are missing
	}
	for each := range strings.SplitSeq(host, ",") {
		a = append(a, fullAddr(each, defaultPort))
	}
	return a
}

// format is the reverse of parseAddrs. Wrong addresses are not shown, because they may be part of a secret.
func (a Addrs) format(defaultPort string) string {
	full, _ := a.full(defaultPort)
	return escapedAddr(strings.Join(full, ","))
}

// Ports that need not be written.
const (
	redisPort    = "6379"
	sentinelPort = "26379"
)

var errList = errors.New("one address expected, not a list")

// CheckAddr returns an error if addr is neither host nor host:port. The host is a name, an IPv4 address, or an IPv6
// address in brackets. The error does not repeat addr, which may have a password in the wrong place. It is for backends
// that are registered by other packages. Settings of the type [Addrs] are checked without it.
func CheckAddr(addr string) error {
	_, err := hostPort(addr, "")
	return err
}

// hostPort brings s to the form host:port. If s lacks the port, it is defaultPort, unless that is empty.
func hostPort(s, defaultPort string) (string, error) {
	s = strings.TrimSpace(s)
	switch {
	case s == "":
		return "", errors.New("address missing, e.g. " + withPort("localhost", defaultPort))
	case strings.Contains(s, "://"):
		return "", errors.New("host:port expected, not a URL")
	case strings.ContainsAny(s, ",; "):
		return "", errList
	}
	host, port, err := splitPort(s, defaultPort)
	if err != nil {
		return "", err
	}
	switch {
	case port == "" && defaultPort == "" && strings.HasSuffix(s, ":"):
		return "", errors.New("there is no port after the colon: give it, or remove the colon")
	case port == "" && defaultPort == "":
		return s, nil
	case port == "":
		port = defaultPort
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("the port is not a number from 1 to 65535")
	}
	return net.JoinHostPort(host, port), nil
}

// withPort appends a port to an example of a host, unless the port is empty.
func withPort(host, port string) string {
	if port == "" {
		return host
	}
	return host + ":" + port
}

// splitPort splits s into its host and its port, which may be empty. examplePort is for errors.
func splitPort(s, examplePort string) (host, port string, err error) {
	if !strings.HasPrefix(s, "[") {
		host, port, _ = strings.Cut(s, ":")
		switch {
		case strings.Contains(port, ":"):
			return "", "", errors.New("not host:port: write an IPv6 address in brackets, as in " +
				withPort("[::1]", examplePort))
		case host == "":
			return "", "", errors.New("host missing, e.g. " + withPort("localhost", examplePort))
		case !hostRE.MatchString(host):
			return "", "", errors.New("the host has other characters than letters, digits and . _ -")
		}
		return host, port, nil
	}
	host, rest, closed := strings.Cut(s[1:], "]")
	ip, err := netip.ParseAddr(host)
	if !closed || rest != "" && rest[0] != ':' || err != nil || !ip.Is6() || !zoneRE.MatchString(ip.Zone()) {
		return "", "", errors.New("not an IPv6 address in brackets, as in " + withPort("[::1]", examplePort))
	}
	return host, strings.TrimPrefix(rest, ":"), nil
}

var (
	hostRE = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	zoneRE = regexp.MustCompile(`^[A-Za-z0-9._-]*$`)
)

// fullAddr brings the host of a URL to the form host:port. What is wrong with it stays as it is, for the check to find.
func fullAddr(host, defaultPort string) string {
	if strings.HasPrefix(host, "[") {
		host = strings.Replace(host, "%25", "%", 1) // of a zone
	}
	if addr, err := hostPort(host, defaultPort); err == nil {
		return addr
	}
	return host
}

// escapedAddr is the reverse of fullAddr.
func escapedAddr(addr string) string { return strings.ReplaceAll(addr, "%", "%25") }
