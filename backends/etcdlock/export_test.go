package etcdlock

// Backend is what New makes a Client of.
type Backend = store

// NewBackend makes one.
var NewBackend = newBackend

// Open makes a backend with a client of its own, as a configuration does.
func Open(s *Config, opts ...Option) (*store, error) {
	return s.open(opts...)
}

// Outdated is outdated.
var Outdated = outdated

// TokensKey is the name of the record from which tokens are counted, without the prefix.
const TokensKey = tokensKey
