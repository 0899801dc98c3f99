package s3lock

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/golocker/locker/config"
)

// Ask calls a program's function for credentials, as the SDK does.
func Ask(ctx context.Context, f config.Credentials) (aws.Credentials, error) {
	return (&Config{credentials: f}).ask(ctx)
}
