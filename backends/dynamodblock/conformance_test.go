package dynamodblock_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/dynamodblock"
	"github.com/golocker/locker/conformance"
	"github.com/golocker/locker/internal/testing/dynamotest"
	"github.com/golocker/locker/record"
	"github.com/golocker/locker/record/recordtest"
)

// tables numbers the tables of tests that share a server.
var tables atomic.Int64

func newTable(t testing.TB, s *dynamotest.Server) string {
	t.Helper()
	name := fmt.Sprint("locks", tables.Add(1))
	s.Table(t, name)
	return name
}

func TestRulesOfAStore(t *testing.T) {
	t.Parallel()
	server := sync.OnceValue(func() *dynamotest.Server { return dynamotest.Start(t) })
	recordtest.Run(t, func(t testing.TB, place string) (record.Store, string) {
		if place == "" {
			place = server().URL() + " " + newTable(t, server())
		}
		url, table, _ := strings.Cut(place, " ")
		return dynamodblock.NewStore(connect(t, url), table), place
	})
}

// world is a table, with a client of the test's own, and faults between the table and the Backends.
type world struct {
	t      testing.TB
	link   *dynamotest.Link
	table  string
	client *sdk.Client

	mu   sync.Mutex
	seen map[string]sighting // by name
}

// sighting is when a text was seen first.
type sighting struct {
	text string
	at   time.Time
}

// prefix is that of the keys.
const prefix = "lock:"

// key returns the partition key of a lock.
func key(of string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"name": &types.AttributeValueMemberS{Value: record.NameOf(prefix + of)}}
}

func (w *world) open() backend.Backend {
	return record.NewBackend(dynamodblock.NewStore(connect(w.t, w.link.URL()), w.table), record.Prefix(prefix),
		record.Poll(50*time.Millisecond))
}

func (w *world) delete(name string) {
	_, err := w.client.DeleteItem(context.Background(), &sdk.DeleteItemInput{TableName: &w.table, Key: key(name)})
	if err != nil {
		w.t.Error(err)
	}
}

func (w *world) foreign(name string) (intact func() bool) {
	item := key(name)
	item["record"] = &types.AttributeValueMemberS{Value: "not a lock"}
	_, err := w.client.PutItem(context.Background(), &sdk.PutItemInput{TableName: &w.table, Item: item})
	if err != nil {
		w.t.Error(err)
	}
	return func() bool {
		out, err := w.client.GetItem(context.Background(), &sdk.GetItemInput{TableName: &w.table, Key: key(name)})
		return err == nil && reflect.DeepEqual(out.Item, item)
	}
}

// left lists the locks that are taken, and whose length is not over since they were seen for the first time.
func (w *world) left() (names []string) {
	out, err := w.client.Scan(context.Background(), &sdk.ScanInput{TableName: &w.table, ConsistentRead: aws.Bool(true)})
	if err != nil {
		return []string{err.Error()}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, item := range out.Items {
		name := item["name"].(*types.AttributeValueMemberS).Value
		text := item["record"].(*types.AttributeValueMemberS).Value
		if w.seen[name].text != text {
			w.seen[name] = sighting{text, time.Now()}
		}
		var lock struct {
			State  string `json:"state"`
			Length int64  `json:"length_ms"`
		}
		err := json.Unmarshal([]byte(text), &lock)
		over := time.Since(w.seen[name].at) > time.Duration(lock.Length)*time.Millisecond
		if err != nil || lock.State != "free" && !over {
			names = append(names, name)
		}
	}
	return names
}

func TestConformance(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	conformance.RunBackend(t, conformance.Harness{
		Store: func(t testing.TB) conformance.Store {
			w := &world{
				t: t, link: s.NewLink(t), table: newTable(t, s), client: connect(t, s.URL()), seen: make(map[string]sighting),
			}
			return conformance.Store{
				Open:      w.open,
				Delete:    w.delete,
				Foreign:   w.foreign,
				Hang:      w.link.Hang,
				Down:      w.link.Down,
				LoseReply: w.link.LoseReply,
				Left:      w.left,
			}
		},
	})
}
