//go:build !unix

package cli

import (
	"context"
	"fmt"
)

// startRedis is for systems on which a child can be tied to the life of its parent.
func startRedis(context.Context, string) (*devNode, error) {
	return nil, fmt.Errorf("%w: it is not started on this system", errNotUp)
}
