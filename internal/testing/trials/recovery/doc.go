// Package recovery is a test of the restart guard. It breaks real redis-servers in ways in which they forget locks,
// under hundreds of locks at a time, with the guard and without, and counts the locks that had two holders.
//
// TestRecovery runs a short selection. With LOCKER_RECOVERY=30m it goes through all faults for that time, as
// `trial recovery` does. docs/faults.md describes what it covers.
package recovery
