package dynamodblock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/golocker/locker"
	"github.com/golocker/locker/backend"
	"github.com/golocker/locker/backends/dynamodblock"
	lockeraws "github.com/golocker/locker/internal/aws"
	"github.com/golocker/locker/internal/testing/datetest"
	"github.com/golocker/locker/internal/testing/dynamotest"
	"github.com/golocker/locker/internal/testing/steady"
	"github.com/golocker/locker/record"
)

// requests counts the requests that a server gets, by their operations.
type requests struct {
	mu     sync.Mutex
	counts map[string]int
	bodies []string // of reads
}

func (r *requests) got(q request) *answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = make(map[string]int)
	}
	r.counts[q.operation]++
	if q.operation == "GetItem" {
		r.bodies = append(r.bodies, string(q.body))
	}
	return nil
}

// take returns the counts, and begins anew.
func (r *requests) take() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := r.counts
	r.counts = nil
	return counts
}

// A lock takes as many requests as the page says, and each read is a strongly consistent one, which dynalite does not
// tell from others.
func TestRequests(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	var seen requests
	b := record.NewBackend(dynamodblock.NewStore(connect(t, front(t, s.URL(), seen.got)), "locks"),
		record.Prefix(prefix), record.Timeout(time.Minute))
	defer b.Close()
	want := func(when string, err error, want map[string]int) {
		t.Helper()
		if got := seen.take(); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v, expected %v", when, got, err, want)
		}
	}
	for _, first := range []bool{true, false} {
		req := backend.Request{Key: "k", Token: backend.NewToken(), TTL: time.Hour}
		g, err := b.Acquire(t.Context(), req)
		if first {
			want("the first lock", err, map[string]int{"DescribeTable": 1, "GetItem": 1, "PutItem": 1})
		} else {
			want("the second lock", err, map[string]int{"PutItem": 1})
		}
		req.Fence, req.Fences, req.Private = g.Fence, g.Fences, g.Private
		want("a renewal", b.Extend(t.Context(), req), map[string]int{"PutItem": 1})
		want("a release", b.Release(t.Context(), req), map[string]int{"PutItem": 1})
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for _, body := range seen.bodies {
		var read struct{ ConsistentRead bool }
		if json.Unmarshal([]byte(body), &read) != nil || !read.ConsistentRead {
			t.Errorf("the read is not a consistent one: %s", body)
		}
	}
}

// An item has strings only: a TTL of DynamoDB deletes items by attributes that are numbers.
func TestNoTTLDeletesAnItem(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	client := connect(t, s.URL())
	l := record.New(dynamodblock.NewStore(client, "locks"), record.Prefix(prefix))
	defer l.Close()
	steady.Unlock(t, steady.Lock(t, l, "k", locker.Label("web-7")))
	out, err := client.GetItem(t.Context(), &sdk.GetItemInput{TableName: aws.String("locks"), Key: key("k")})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Item) != 2 {
		t.Errorf("the item is %v", out.Item)
	}
	for name, value := range out.Item {
		if _, ok := value.(*types.AttributeValueMemberS); !ok {
			t.Errorf("the attribute %s is no string: %T", name, value)
		}
	}
}

// An item that somebody else has made, with no text at all, is no lock, and stays.
func TestItemsOfOthersAreNoLocks(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	client := connect(t, s.URL())
	l := record.New(dynamodblock.NewStore(client, "locks"), record.Prefix(prefix))
	defer l.Close()
	for name, value := range map[string]types.AttributeValue{
		"none": nil, "number": &types.AttributeValueMemberN{Value: "1"}, "empty": &types.AttributeValueMemberS{},
		"binary": &types.AttributeValueMemberB{Value: []byte("{}")},
	} {
		item := key(name)
		if value != nil {
			item["record"] = value
		}
		_, err := client.PutItem(t.Context(), &sdk.PutItemInput{TableName: aws.String("locks"), Item: item})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryLock(t.Context(), name); !errors.Is(err, locker.ErrForeignKey) {
			t.Errorf("%s: %v", name, err)
		}
		out, err := client.GetItem(t.Context(), &sdk.GetItemInput{TableName: aws.String("locks"), Key: key(name)})
		if err != nil || len(out.Item) != len(item) {
			t.Errorf("%s: the item is now %v, %v", name, out, err)
		}
	}
}

// Only the answer that the condition does not hold is a conflict. After any other, the condition may hold.
func TestOtherRefusalsAreNoConflicts(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	for _, code := range []string{
		"TransactionConflictException", "ProvisionedThroughputExceededException", "ThrottlingException",
		"ReplicatedWriteConflictException", "RequestLimitExceeded", "InternalServerError", "ConditionalCheckFailedException",
	} {
		var refuses atomic.Bool
		endpoint := front(t, s.URL(), func(q request) *answer {
			if q.operation == "PutItem" && refuses.Load() {
				return refusal(code)
			}
			return nil
		})
		client := connect(t, endpoint)
		once := sdk.New(client.Options(), func(o *sdk.Options) { o.RetryMaxAttempts = 1 })
		store := dynamodblock.NewStore(once, "locks")
		version, err := store.Create(t.Context(), strings.ToLower(code), []byte("text"))
		if err != nil {
			t.Fatal(err)
		}
		refuses.Store(true)
		_, creates := store.Create(t.Context(), "another", []byte("text"))
		_, replaces := store.Replace(t.Context(), strings.ToLower(code), version, []byte("other text"))
		for _, err := range []error{creates, replaces} {
			if err == nil || errors.Is(err, record.ErrConflict) != (code == "ConditionalCheckFailedException") {
				t.Errorf("%s: %v", code, err)
			}
		}
	}
}

// table is the answer to a request for the description of a table, with more about it.
func table(key, kind, more string) *answer {
	return &answer{status: http.StatusOK, body: fmt.Sprintf(`{"Table": {"TableName": "locks", "TableStatus": "ACTIVE",
		"AttributeDefinitions": [{"AttributeName": %q, "AttributeType": %q}, {"AttributeName": "b", "AttributeType": "N"}],
		"KeySchema": [{"AttributeName": %q, "KeyType": "HASH"}] %s}}`, key, kind, key, more)}
}

// Where the last writer wins, two processes in two regions could hold one lock.
func TestGlobalTablesAreRefused(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	const replicas = `, "Replicas": [{"RegionName": "us-east-1"}, {"RegionName": "us-west-2"}]`
	var mu sync.Mutex
	var now *answer
	describe := func(a *answer) {
		mu.Lock()
		defer mu.Unlock()
		now = a
	}
	endpoint := front(t, s.URL(), func(q request) *answer {
		mu.Lock()
		defer mu.Unlock()
		if q.operation != "DescribeTable" {
			return nil
		}
		return now
	})
	for _, c := range []struct {
		description *answer
		want        string // empty: it is not refused
	}{
		{table("name", "S", replicas), "us-east-1, us-west-2"},
		{table("name", "S", replicas+`, "MultiRegionConsistency": "EVENTUAL"`), "the last writer wins"},
		{table("name", "S", replicas+`, "MultiRegionConsistency": "STRONG"`), ""},
		{table("name", "S", ""), ""},
		{refusal("AccessDeniedException"), ""},
		{refusal("ThrottlingException"), ""},
	} {
		describe(c.description)
		client := sdk.New(connect(t, endpoint).Options(), func(o *sdk.Options) { o.RetryMaxAttempts = 1 })
		l := record.New(dynamodblock.NewStore(client, "locks"), record.Prefix(prefix), record.Timeout(time.Minute))
		if c.want != "" {
			for range 2 { // it does not get used to it
				_, err := l.TryLock(t.Context(), "k")
				if !errors.Is(err, locker.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: %v, expected %q", c.description.body, err, c.want)
				}
			}
			describe(table("name", "S", "")) // the replicas are gone
		}
		lease, err := l.TryLock(t.Context(), "k", locker.TTL(time.Hour))
		if err != nil {
			t.Fatalf("%s: %v", c.description.body, err)
		}
		steady.Unlock(t, lease)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The description of the table costs a request once, also for a user who may not have it.
func TestTheTableIsExaminedOnce(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	for _, denies := range []bool{false, true} {
		var seen requests
		store := dynamodblock.NewStore(connect(t, front(t, s.URL(), func(q request) *answer {
			seen.got(q)
			if denies && q.operation == "DescribeTable" {
				return refusal("AccessDeniedException")
			}
			return nil
		})), "locks")
		for range 3 {
			if _, _, err := store.Get(context.Background(), "k"); err != nil {
				t.Error(err)
			}
		}
		if got := seen.take(); got["DescribeTable"] != 1 || got["GetItem"] != 3 {
			t.Errorf("three reads took %v", got)
		}
	}
}

// Processes that look once take locks by the dates of answers.
func TestDates(t *testing.T) {
	t.Parallel()
	s := dynamotest.Start(t)
	s.Table(t, "locks")
	datetest.Run(t, func(t testing.TB, via func(lockeraws.Sender) lockeraws.Sender) record.Store {
		o := connect(t, s.URL()).Options()
		o.HTTPClient = via(o.HTTPClient)
		return dynamodblock.NewStore(sdk.New(o), "locks")
	})
}

// Only of Amazon's servers it is known by how much their clocks differ.
func TestSkewOfAmazons(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(o *sdk.Options)
		want   time.Duration
	}{
		"Amazon":   {func(*sdk.Options) {}, dynamodblock.Skew},
		"endpoint": {func(o *sdk.Options) { o.BaseEndpoint = new(string) }, 0},
		"resolver": {func(o *sdk.Options) { o.EndpointResolverV2 = struct{ sdk.EndpointResolverV2 }{} }, 0},
		"former resolver": {func(o *sdk.Options) {
			o.EndpointResolver = sdk.EndpointResolverFromURL("http://dynamodb:8000") //nolint:staticcheck // programs have it
		}, 0},
	} {
		store := dynamodblock.NewStore(sdk.New(sdk.Options{Region: "eu-west-1"}, c.change), "locks")
		if resolution, skew := store.ServerClock(); resolution != time.Second || skew != c.want {
			t.Errorf("%s: %v, %v", name, resolution, skew)
		}
	}
}
