package etcd

import (
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A lock has one entry in its directory for its owner, and one for each waiter. The name of an entry ends with the
// token of its owner, and its value is the owner's label. The entry that was created first has the lock.

// keptValue is the value of an entry whose owner has released it with Keep. It is not a label, because it has a |.
const keptValue = "|kept"

var escapes = strings.NewReplacer("%", "%25", "/", "%2F")

// dir returns the directory of a lock. The directories of different keys have no common entries, because a key has no
// slash in it.
func (b *Backend) dir(key string) string { return b.prefix + escapes.Replace(key) + "/" }

// entry returns the name of the entry of a token.
func (b *Backend) entry(key, token string) string { return b.dir(key) + token }

// first reads the entry that has the lock, and counts all entries.
func first(dir string) clientv3.Op { return clientv3.OpGet(dir, clientv3.WithFirstCreate()...) }

// owns says that an entry was created at revision fence, and was not released since.
func owns(entry string, fence uint64) []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(entry), "=", int64(fence)),
		clientv3.Compare(clientv3.Value(entry), "!=", keptValue),
	}
}

// free says that a directory has no entries.
func free(dir string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(dir), "=", 0).WithPrefix()
}
