package strategy

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestASimulationMayEndSoonAfterAnInterruption(t *testing.T) {
	ctx, press := context.WithCancel(context.Background())
	ask := whenLeft(ctx, 2)
	if err := ask(); err != nil {
		t.Error(err)
	}
	press()
	for i, want := range []error{nil, nil, context.Canceled, context.Canceled} {
		if err := ask(); !errors.Is(err, want) {
			t.Errorf("question %d after the end: %v, want %v", i, err, want)
		}
	}
	late, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	if err := whenLeft(late, 0)(); err != nil {
		t.Errorf("at a deadline: %v", err)
	}
}
