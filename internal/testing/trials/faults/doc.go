// Package faults is a test: it runs locks on real redis-servers, breaks the servers, the network between them and the
// clients, the clients, and the clocks, and judges what the clients were told by the rules of
// internal/testing/trials/history.
//
// TestFaults runs a short selection. With LOCKER_FAULTS=8m it goes through all faults again and again for that long;
// `make faults` and `make soak` do so. docs/faults.md says what it covers.
package faults
