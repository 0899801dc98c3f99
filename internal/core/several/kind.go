package several

import "context"

type kindKey struct{}

// WithKind returns a context for the calls that acquire the locks of a permit, a reader, a writer or a term. It must
// not get to functions of the program, whose locks may be of another kind.
func WithKind(ctx context.Context, kind string) context.Context {
	return context.WithValue(ctx, kindKey{}, kind)
}

// KindFrom returns what a lock that is acquired with ctx is for, or "".
func KindFrom(ctx context.Context) string {
	kind, _ := ctx.Value(kindKey{}).(string)
	return kind
}
