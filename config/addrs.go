package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

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
