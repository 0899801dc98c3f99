//go:build !unix

package cli

import (
	"context"
	"fmt"
)

var durable, forgetful []string

// startRedis is not supported on this system.
func startRedis(context.Context, string, string, []string) (*devNode, error) {
	return nil, fmt.Errorf("%w: it is not started on this system", errNotUp)
}
