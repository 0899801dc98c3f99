package dynamodb

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
)

// denied is the code of the error for a user without a right.
const denied = "AccessDeniedException"

// explain adds to an error of the SDK what to do about it, if it lasts until somebody does something.
func (s *Store) explain(err error) error {
	var answer smithy.APIError
	if !errors.As(err, &answer) {
		return err
	}
	var advice string
	switch answer.ErrorCode() {
	case "ResourceNotFoundException":
		advice = "create the table: " + s.create()
	case "ValidationException":
		advice = s.otherKey()
	case denied:
		advice = "grant dynamodb:GetItem, dynamodb:PutItem and dynamodb:DescribeTable on the table to this user"
	case "UnrecognizedClientException", "InvalidSignatureException", "IncompleteSignatureException",
		"MissingAuthenticationTokenException", "ExpiredTokenException", "InvalidClientTokenId":
		advice = "correct the credentials, or the clock of this machine"
	case "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded":
		advice = "give the table more capacity, or the billing mode PAY_PER_REQUEST"
	default:
		return err
	}
	return fmt.Errorf("%w: %s", err, advice)
}

// create returns the command that creates the table.
func (s *Store) create() string {
	line := "aws dynamodb create-table --table-name " + s.table + " --billing-mode PAY_PER_REQUEST" +
		" --attribute-definitions AttributeName=" + attrName + ",AttributeType=S" +
		" --key-schema AttributeName=" + attrName + ",KeyType=HASH"
	o := s.client.Options()
	if o.Region != "" {
		line += " --region " + o.Region
	}
	if endpoint := aws.ToString(o.BaseEndpoint); endpoint != "" {
		line += " --endpoint-url " + endpoint
	}
	return line
}

func (s *Store) otherKey() string {
	return fmt.Sprintf("the table %s must have the partition key %q, a string, and no sort key. Such a table is made by: "+
		"%s", s.table, attrName, s.create())
}

// unfit says why locks would not be safe in a table, or could not be stored.
func (s *Store) unfit(t *types.TableDescription) error {
	if len(t.KeySchema) != 1 || aws.ToString(t.KeySchema[0].AttributeName) != attrName {
		return errors.New("dynamodb: " + s.otherKey())
	}
	for _, a := range t.AttributeDefinitions {
		if aws.ToString(a.AttributeName) == attrName && a.AttributeType != types.ScalarAttributeTypeS {
			return errors.New("dynamodb: " + s.otherKey())
		}
	}
	if len(t.Replicas) == 0 || t.MultiRegionConsistency == types.MultiRegionConsistencyStrong {
		return nil
	}
	var regions []string
	for _, r := range t.Replicas {
		regions = append(regions, aws.ToString(r.RegionName))
	}
	return fmt.Errorf("dynamodb: the table %s is a global table with replicas in %s: there, the last writer wins, so two "+
		"processes could hold one lock. Use a table without replicas, or one with multi-Region strong consistency", s.table,
		strings.Join(regions, ", "))
}
