package main

import (
	"testing"

	"github.com/golocker/locker/config"
)

// The command knows every store of the project.
func TestStores(t *testing.T) {
	for _, url := range []string{
		"memory:", "redis://h", "redis+valkey://h", "redlock://a,b,c", "etcd://h", "postgres://h/db", "nats://h",
		"mysql://h/db", "file:/locks", "s3://bucket/folder", "dynamodb://table", "kubernetes://namespace",
	} {
		if _, err := config.Parse(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}
