package groupcost_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
)

// asked is a context that ends when it has been asked so many times whether it has.
type asked struct {
	context.Context
	end  func()
	left atomic.Int64
}

func endsWhenAsked(t *testing.T, times int64) *asked {
	ctx, end := context.WithCancel(t.Context())
	a := &asked{Context: ctx, end: end}
	a.left.Store(times)
	return a
}

// Err counts.
func (a *asked) Err() error {
	if a.left.Add(-1) < 0 {
		a.end()
	}
	return a.Context.Err()
}

// Pricing asks before every simulation, and once told to end it begins no more: what works
// beside looks once more each, and at one kind of group that was about to be handed out.
func TestPricingEndsWithItsContext(t *testing.T) {
	q, j := referenceJob(t, "1x4 h100_sxm + 1x4 a100_sxm", nil)
	most := int64(2*runtime.GOMAXPROCS(0) + 3)
	for _, o := range []groupcost.Options{{}, {Of: costmodel.Documents{Tokens: 4096, Count: 6}}} {
		for _, times := range []int64{0, 1, 2, 20, 100} {
			ctx := endsWhenAsked(t, times)
			c, err := groupcost.FromLaws(ctx, q, j, o)
			if !errors.Is(err, context.Canceled) || c != nil {
				t.Errorf("%+v, ended after %d: %v", o.Of, times, err)
			}
			if more := -ctx.left.Load(); more > most {
				t.Errorf("%+v, ended after %d: went on %d times, want %d at most", o.Of, times, more, most)
			}
		}
	}
}
