package etcdlock

import (
	"cmp"
	"context"
	"iter"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/golocker/locker/inspect"
	"github.com/golocker/locker/internal/core/listing"
)

// page is how many names of entries a request of List asks for.
const page = 100

// List implements [inspect.Lister]. It reads the names of entries by pages, and looks at each lock as Inspect does.
func (b *store) List(ctx context.Context, prefix string) iter.Seq2[inspect.Listed, error] {
	return listing.Of(ctx, b.pages(ctx, b.prefix+escapes.Replace(prefix)), listing.By(b.Inspect))
}

// pages yields the keys whose directories begin with start. The entries of a lock follow each other, and a page goes on
// behind those of its last lock. So a lock whose entries come and go between two pages is on one of them.
func (b *store) pages(ctx context.Context, start string) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		end := clientv3.GetPrefixRangeEnd(start)
		for from := cmp.Or(start, "\x00"); ; {
			resp, err := b.names(ctx, from, end)
			if err != nil {
				yield(nil, err)
				return
			}
			var keys []string
			for _, kv := range resp.Kvs {
				dir, _, found := strings.Cut(strings.TrimPrefix(string(kv.Key), b.prefix), "/")
				key := unescape.Replace(dir)
				if found && key != "" && escapes.Replace(key) == dir && (len(keys) == 0 || keys[len(keys)-1] != key) {
					keys = append(keys, key)
				}
			}
			if !yield(keys, nil) || !resp.More {
				return
			}
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
			if len(keys) > 0 {
				from = max(from, b.dir(keys[len(keys)-1])+"\xff") // the other entries are of the same lock
			}
		}
	}
}

var unescape = strings.NewReplacer("%25", "%", "%2F", "/")

// names reads the names of a page of entries.
func (b *store) names(ctx context.Context, from, end string) (*clientv3.GetResponse, error) {
	ctx, cancel, err := b.bounded(ctx, b.timeout)
	if err != nil {
		return nil, err
	}
	defer cancel()
	resp, err := b.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(page))
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	return resp, nil
}
