package s3lock

import (
	"errors"
	"fmt"
	"net"
	"net/http"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
)

// noSuchKey is the code of the answer that there is no object. That there is no bucket has another code, and an answer
// 404 that is not from S3 has none.
const noSuchKey = "NoSuchKey"

// codeOf returns the code of an answer of the server, or "" if err is not one.
func codeOf(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// statusOf returns the status of an answer of the server, or 0 if err is not one.
func statusOf(err error) int {
	var answer *awshttp.ResponseError
	if errors.As(err, &answer) {
		return answer.HTTPStatusCode()
	}
	return 0
}

// busy reports whether the server has answered that it did not execute a write, because of other writes: another one of
// the object is in progress (409), there were too many, or this object takes one per second (429).
func busy(err error) bool {
	switch codeOf(err) {
	case "ConditionalRequestConflict", "OperationAborted":
		return true
	}
	status := statusOf(err)
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

// explained adds to an error what to do about it, if that is known.
func (s *Store) explained(err error) error {
	if advice := s.advice(err); advice != "" {
		return fmt.Errorf("%w: %s", err, advice)
	}
	return err
}

func (s *Store) advice(err error) string {
	var name *net.DNSError
	var garbled *smithy.DeserializationError
	switch status := statusOf(err); codeOf(err) {
	case "NoSuchBucket":
		return fmt.Sprintf("create the bucket %q, or correct its name or the endpoint", s.bucket)
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "TokenRefreshRequired",
		"InvalidClientTokenId", "Unauthorized":
		return "correct the credentials"
	case "RequestTimeTooSkewed":
		return "set the clock of this machine, which differs by more than 15 minutes from that of the server"
	case "PermanentRedirect", "TemporaryRedirect", "MovedPermanently", "AuthorizationHeaderMalformed",
		"IllegalLocationConstraintException":
		return fmt.Sprintf("set the region to that of the bucket %q%s", s.bucket, regionOf(err))
	default:
		switch {
		case status == http.StatusForbidden:
			return fmt.Sprintf("grant s3:GetObject and s3:PutObject on s3://%s/%s*, and s3:ListBucket on the bucket, without "+
				"which S3 refuses to say that an object does not exist", s.bucket, s.folder)
		case status == http.StatusNotImplemented:
			return "the server seems to have no conditional writes: use one that has"
		case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests:
			return "too many requests, if this goes on: give a longer poll, or longer TTLs"
		case status == http.StatusNotFound, status == http.StatusMethodNotAllowed, errors.As(err, &garbled):
			return "see whether the endpoint is that of S3"
		}
	}
	if errors.As(err, &name) {
		return "correct the endpoint, or set path_style if the server does not know its buckets by host names"
	}
	return ""
}

// regionOf returns what an answer says of the region of the bucket, in brackets.
func regionOf(err error) string {
	var answer *awshttp.ResponseError
	if errors.As(err, &answer) {
		if region := answer.Response.Header.Get("x-amz-bucket-region"); region != "" {
			return " (" + region + ")"
		}
	}
	return ""
}
