// Package faults is a test. It runs locks on real redis-servers, breaks the servers, the network between servers and
// clients, the clients, and the clocks. Its tests share the testbed and the kinds of faults, and ask three questions:
//
//   - TestFaults: are all promises kept? It judges the results of all calls by the rules of
//     internal/judge, and what MONITOR shows of the servers.
//   - TestRecovery, TestFailovers: how many of hundreds of locks have two holders when servers forget, with the restart
//     guard and without?
//   - TestCluster, TestSentinel: for how long does nobody get a lock when slots move and masters fail, and what does a
//     waiter cost?
//
// Each runs a short selection, or what a variable such as LOCKER_FAULTS=8m says, as `trial faults` does. docs/faults.md
// describes what they cover.
package faults
