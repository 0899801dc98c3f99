// Package faults is a test. It runs locks on real redis-servers, breaks the servers, the network between servers and
// clients, the clients, and the clocks, and judges the results of all calls by the rules of
// internal/testing/trials/history.
//
// TestFaults runs a short selection. With LOCKER_FAULTS=8m it goes through all faults again and again for that time, as
// `trial faults` does. docs/faults.md describes what it covers.
package faults
