package dynamodblock

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

// codeOf returns the code of an answer of the server, or "" if err is not one.
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// explained adds to an error what to do about it, if that is known.
func (s *Store) explained(err error) error {
	if advice := s.advice(err); advice != "" {
		return fmt.Errorf("%w: %s", err, advice)
	}
	return err
}

func (s *Store) advice(err error) string {
	switch codeOf(err) {
	case "ResourceNotFoundException":
		return "create the table: " + s.create()
	case "ValidationException":
		return s.otherKey()
	case denied:
		return "grant dynamodb:GetItem, dynamodb:PutItem and dynamodb:DescribeTable on the table to this user, and " +
			"dynamodb:Scan to one who lists locks"
	case "UnrecognizedClientException", "InvalidSignatureException", "IncompleteSignatureException",
		"MissingAuthenticationTokenException", "ExpiredTokenException", "InvalidClientTokenId":
		return "correct the credentials, or the clock of this machine"
	case "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded":
		return "give the table more capacity, or the billing mode PAY_PER_REQUEST"
	}
	return ""
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
