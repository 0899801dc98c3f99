// Package dynamodblock keeps locks in a table of DynamoDB. A program that imports it may open URLs such as
//
//	dynamodb://locks?region=eu-west-1
//
// With a client of its own, it writes
//
//	import "github.com/golocker/locker/backends/dynamodblock"
//
//	l := record.New(lockdynamodb.NewStore(client, "locks"), record.Prefix("lock:"))
//
// Each lock is one item, a record of package record, which says what it promises and how many requests it makes.
// docs/backends/dynamodb.md says what the table needs. Its partition key is a string that is called "name", and it has
// no sort key:
//
//	aws dynamodb create-table --table-name locks --billing-mode PAY_PER_REQUEST \
//	    --attribute-definitions AttributeName=name,AttributeType=S --key-schema AttributeName=name,KeyType=HASH
package dynamodblock

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	lockeraws "github.com/golocker/locker/internal/aws"
	"github.com/golocker/locker/record"
)

// The attributes of an item. Both are strings. A TTL of DynamoDB looks at numbers only, so it never deletes an item.
const (
	attrName = "name"   // the partition key: the name of the record
	attrText = "record" // the text of the record
)

// Store implements [record.Store]. The version of a record is its text, because a Backend never writes the same text
// twice. So the condition of a Replace is that the item still has the text that was read, and there is no version that
// could disagree with it. It is safe for concurrent use.
//
// The first request is preceded by one that describes the table, to see whether it can keep locks. If the user may not
// do that, the table is used as it is.
type Store struct {
	client   *sdk.Client
	table    string
	examined atomic.Bool
}

// NewStore returns the Store of the items of a table, which must exist. It sends nothing. The client stays the
// caller's, with its timeouts and retries.
func NewStore(client *sdk.Client, table string) *Store { return &Store{client: client, table: table} }

// Skew is by how much the clocks of Amazon's servers may differ, unless [record.ClockSkew] says otherwise.
const Skew = 5 * time.Second

// ServerClock implements [record.ServerClock]. The time is the Date of an answer. Nobody knows by how much the clocks
// of servers differ that are not Amazon's.
func (s *Store) ServerClock() (resolution, skew time.Duration) {
	if !s.amazons() {
		return time.Second, 0
	}
	return time.Second, Skew
}

// amazons reports whether the client asks Amazon's servers.
func (s *Store) amazons() bool {
	o := s.client.Options()
	amazons := reflect.TypeOf(sdk.NewDefaultEndpointResolverV2())
	//nolint:staticcheck // A program may still have a resolver of the former kind.
	return o.BaseEndpoint == nil && o.EndpointResolver == nil && reflect.TypeOf(o.EndpointResolverV2) == amazons
}

// telling makes the answer to a request tell the time.
func telling(o *sdk.Options) { o.HTTPClient = lockeraws.Telling{Sender: o.HTTPClient} }

// Get implements [record.Store]. The read is a strongly consistent one.
func (s *Store) Get(ctx context.Context, name string) (text []byte, version string, err error) {
	if err := s.examine(ctx); err != nil {
		return nil, "", err
	}
	out, err := s.client.GetItem(ctx, &sdk.GetItemInput{
		TableName: &s.table, Key: map[string]types.AttributeValue{attrName: keyOf(name)}, ConsistentRead: aws.Bool(true),
	}, telling)
	switch {
	case err != nil:
		return nil, "", s.explained(err)
	case len(out.Item) == 0:
		return nil, "", nil
	}
	t, ok := out.Item[attrText].(*types.AttributeValueMemberS)
	if !ok || t.Value == "" {
		const foreign = "an item without a record" // which no text of a Backend is equal to
		return []byte(foreign), foreign, nil
	}
	return []byte(t.Value), t.Value, nil
}

// Create implements [record.Store].
func (s *Store) Create(ctx context.Context, name string, text []byte) (version string, err error) {
	return s.put(ctx, name, text, &sdk.PutItemInput{
		ConditionExpression:      aws.String("attribute_not_exists(#name)"),
		ExpressionAttributeNames: map[string]string{"#name": attrName},
	})
}

// Replace implements [record.Store].
func (s *Store) Replace(ctx context.Context, name, version string, text []byte) (newVersion string, err error) {
	return s.put(ctx, name, text, &sdk.PutItemInput{
		ConditionExpression:       aws.String("#record = :version"),
		ExpressionAttributeNames:  map[string]string{"#record": attrText},
		ExpressionAttributeValues: map[string]types.AttributeValue{":version": &types.AttributeValueMemberS{Value: version}},
	})
}

// put writes an item on the condition of in, in one step of the partition's leader.
func (s *Store) put(ctx context.Context, name string, text []byte, in *sdk.PutItemInput) (version string, err error) {
	if err := s.examine(ctx); err != nil {
		return "", err
	}
	version = string(text)
	in.TableName = &s.table
	in.Item = map[string]types.AttributeValue{
		attrName: keyOf(name), attrText: &types.AttributeValueMemberS{Value: version},
	}
	_, err = s.client.PutItem(ctx, in, telling)
	var refused *types.ConditionalCheckFailedException
	switch {
	case errors.As(err, &refused):
		return "", record.ErrConflict
	case err != nil: // also of a conflict with a transaction or another region: the condition may hold
		return "", s.explained(err)
	}
	return version, nil
}

// keyOf returns the partition key of a record.
func keyOf(name string) types.AttributeValue { return &types.AttributeValueMemberS{Value: name} }

// examine returns an error if the table cannot keep locks. It asks once, or until the answer is that it can.
func (s *Store) examine(ctx context.Context) error {
	if s.examined.Load() {
		return nil
	}
	out, err := s.client.DescribeTable(ctx, &sdk.DescribeTableInput{TableName: &s.table})
	switch {
	case err == nil:
		err = s.unfit(out.Table)
		s.examined.Store(err == nil)
		return err
	case codeOf(err) != "": // what the request for the item is answered says more
		s.examined.Store(codeOf(err) == denied)
		return nil
	}
	return s.explained(err)
}
