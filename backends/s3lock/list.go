package s3lock

import (
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/golocker/locker/record"
)

// List implements [record.Lister]. S3 lists names only, a thousand with a request.
func (s *Store) List(ctx context.Context, prefix, from string) (page []record.Listed, next string, err error) {
	in := &sdk.ListObjectsV2Input{Bucket: &s.bucket, Prefix: aws.String(s.folder + prefix)}
	if from != "" {
		in.ContinuationToken = &from
	}
	out, err := s.client.ListObjectsV2(ctx, in, settings)
	if err != nil {
		return nil, "", s.explained(err)
	}
	for _, o := range out.Contents {
		if name := strings.TrimPrefix(aws.ToString(o.Key), s.folder); name != probeName {
			page = append(page, record.Listed{Name: name})
		}
	}
	return page, aws.ToString(out.NextContinuationToken), nil
}

// ListPrice implements [record.Biller]. What servers cost that are not Amazon's is not known, so it is nothing.
func (s *Store) ListPrice() string {
	if !s.amazons() {
		return ""
	}
	return "S3 bills a request for each record, also for those of free locks, which stay"
}
