package postgreslock

// Backend is what New makes a Client of.
type Backend = store

// NewBackend makes one.
var NewBackend = newBackend

// Version and Code are for tests of what tables refuse.
const Version = version

func Code(err error) string { return code(err) }
