// Package elections lets five candidates in processes of their own compete, ends leaders in every way, and measures how
// long nobody leads. A resource outside of all of them judges whether two led at once.
package elections
