package config

import (
	"errors"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

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
