// Package soak lets processes contend for locks on every kind of store, for permits, shared and exclusive locks, and in
// elections, while processes are killed and stopped, servers are restarted and stand still, and networks fail. A judge
// outside of all of them hears what each process believed, and when.
//
// A trial is a store with its processes. [kinds] is the table of faults, and [plan.callers] that of what processes do.
package soak
