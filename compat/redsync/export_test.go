package redsync

// Open is New with options of package redlock, for several pools.
var Open = open
