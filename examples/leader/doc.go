// Leader: one of several candidates leads at a time. It works while it leads, and stops before another one can take
// over. The election is in main.go.
//
//	go run ./examples/leader    # three candidates in this process, for six seconds
//
//	# in several terminals, until Ctrl-C
//	LOCKER_URL=redis://localhost:6379 go run ./examples/leader -candidates 1 -term 0 -for 0
//
// Then stop the leader in different ways. After Ctrl-C, the next candidate leads at once. After kill -9, it takes a
// TTL. After Ctrl-Z and, some time later, fg, the leader notices that its time is over before it does anything.
//
// The processes share a log if LOCKER_JOURNAL names one (LOCKER_JOURNAL=/tmp/journal). The log stands for the
// database or queue to which a leader writes: see storage.go.
package main
