package postgres

// Backend is what New makes a Client of.
type Backend = backend

// NewBackend makes one.
var NewBackend = newBackend
