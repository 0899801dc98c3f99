//go:build !unix

package cli

import (
	"context"
	"fmt"
)

// startRedis is not supported on this system.
func startRedis(context.Context, string) (*devNode, error) {
	return nil, fmt.Errorf("%w: it is not started on this system", errNotUp)
}

// columns is the width of a terminal, which is not known here.
func columns(any) int { return 0 }
