// Package everystore records what concurrent clients do on every kind of store, and judges the histories. It is a
// module of its own, because it needs the backends of all stores.
package everystore
