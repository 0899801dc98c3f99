// Package soak lets processes contend for locks on every kind of store, and for permits, shared and exclusive locks,
// while processes are killed and stopped, servers are restarted and stand still, and networks fail. A judge outside of
// all of them hears what each process believed, and when.
package soak
