// Package cluster is a test of locks on a real Redis Cluster whose slots move and whose masters fail, under load. It
// measures how long nobody gets a lock, and what a waiter costs.
//
// TestCluster lets one slot move. With LOCKER_CLUSTER=100, each driver sees 100 migrations of slots and 50 failovers,
// as in `trial cluster`. docs/faults.md has the figures.
package cluster
