package host

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/profile"
)

var _ profile.Clock = Clock{}

func TestSleepWaitsOrEndsWithItsContext(t *testing.T) {
	start := Clock{}.Now()
	if err := (Clock{}).Sleep(t.Context(), 20*time.Millisecond); err != nil || time.Since(start) < 20*time.Millisecond {
		t.Errorf("%v after %s", err, time.Since(start))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (Clock{}).Sleep(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
