// Package stores has no code. Its module names the servers that the tests of backends build and start, as tools, so
// that no other module depends on them.
package stores
