// Package peers lets other lock libraries, and this one, meet faults, and prints what has come of it: overlapping
// holds, lost updates, and how long nobody could lock.
package peers
