// Package stored compares what locks are in every kind of store with files. Programs with other releases of the library
// read it during a rolling upgrade.
package stored
