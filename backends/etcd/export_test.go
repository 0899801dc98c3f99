package etcd

// Open makes a Backend with a client of its own, as a configuration does.
func Open(s *Config, opts ...Option) (*Backend, error) {
	return s.open(opts...)
}

// Outdated is outdated.
var Outdated = outdated

// TokensKey is the name of the record from which tokens are counted, without the prefix.
const TokensKey = tokensKey
