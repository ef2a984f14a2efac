// Package ended says in words why work was ended before it was done. "context deadline
// exceeded" names neither the time that was up nor who set it, and whoever reads it in a
// plan's warnings has no way out.
package ended

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// After is ctx for so long at the most; Why names the limit then, by what set it, such as
// --deadline.
func After(ctx context.Context, limit time.Duration, setBy string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, &reason{
		fmt.Sprintf("the time was up (%s %s): give it more, or none", setBy, limit), context.DeadlineExceeded,
	})
}

// Why is why ctx has ended, nil while it has not. As an error it is still what the context
// says: errors.Is finds context.DeadlineExceeded or context.Canceled, and what
// context.Cause gives.
func Why(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	cause := context.Cause(ctx)
	switch {
	case errors.As(cause, new(*reason)):
		return cause
	case errors.Is(cause, context.DeadlineExceeded):
		return &reason{"the time that it was given was up", cause}
	case errors.Is(cause, context.Canceled):
		return &reason{"it was interrupted", cause}
	}
	return cause // an error that ended the work beside it
}

// reason is a cause in words.
type reason struct {
	words string
	cause error
}

func (r *reason) Error() string { return r.words }

func (r *reason) Unwrap() error { return r.cause }
