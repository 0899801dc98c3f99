package dynamodblock

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/golocker/locker/record"
)

// page is how many items a request of List looks at.
const page = 500

// List implements [record.Lister], by a strongly consistent Scan: its key being a hash, the table has no order by name.
func (s *Store) List(ctx context.Context, prefix, from string) (all []record.Listed, next string, err error) {
	if err := s.examine(ctx); err != nil {
		return nil, "", err
	}
	in := &sdk.ScanInput{TableName: &s.table, ConsistentRead: aws.Bool(true), Limit: aws.Int32(page)}
	if prefix != "" {
		in.FilterExpression = aws.String("begins_with(#name, :prefix)")
		in.ExpressionAttributeNames = map[string]string{"#name": attrName}
		in.ExpressionAttributeValues = map[string]types.AttributeValue{":prefix": keyOf(prefix)}
	}
	if from != "" {
		in.ExclusiveStartKey = map[string]types.AttributeValue{attrName: keyOf(from)}
	}
	out, err := s.client.Scan(ctx, in, telling)
	if err != nil {
		return nil, "", s.explained(err)
	}
	for _, item := range out.Items {
		name, _ := item[attrName].(*types.AttributeValueMemberS)
		text, ok := item[attrText].(*types.AttributeValueMemberS)
		if name != nil && ok && text.Value != "" {
			all = append(all, record.Listed{Name: name.Value, Text: []byte(text.Value)})
		}
	}
	if last, ok := out.LastEvaluatedKey[attrName].(*types.AttributeValueMemberS); ok {
		next = last.Value
	}
	return all, next, nil
}

// ListPrice implements [record.Biller]. What servers cost that are not Amazon's is not known, so it is nothing.
func (s *Store) ListPrice() string {
	if !s.amazons() {
		return ""
	}
	return "DynamoDB bills the reading of the whole table, twice with a prefix, and of the records of free locks, too"
}
