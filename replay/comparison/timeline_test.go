package comparison

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/replay"
)

func TestTimeline(t *testing.T) {
	w := candidates(t)
	// The fourth block is the one in the middle.
	slow := []float64{5, 1, 4, 3, 2, 6, 1.5}
	w.blocks = len(slow)
	block := -1
	w.slower = func(k costmodel.ReplayKey) float64 {
		if k.Rank == 0 && k.Dir == costmodel.ForwardPass && k.Op == costmodel.LinearIn { // the first of a plan
			block++
		}
		return slow[block/len(w.layouts)]
	}
	rec := read(t, w.play(t))
	x, err := NewTimeline(rec, madeUp(t, linkRate), 1, Links{})
	if err != nil || x.Plan != 1 || x.Block != 3 || len(x.Devices) != 4 {
		t.Fatalf("%+v, %v", x, err)
	}
	total := func(tasks []costmodel.ReplayTask) (sum units.Seconds) {
		for _, k := range tasks {
			if k.Op == costmodel.AttentionOp {
				sum += k.Time
			}
		}
		return sum
	}
	if ratio := total(x.Recorded) / total(x.Predicted); ratio < 2.99 || ratio > 3.01 {
		t.Errorf("recorded attention takes %v times the predicted", ratio)
	}
	if _, err := NewTimeline(rec, madeUp(t, linkRate), 8, Links{}); err == nil || !strings.Contains(err.Error(), "plans 0 to 7") {
		t.Errorf("%v", err)
	}
	w.drop = func(*replay.Span) bool { return true }
	block = -1
	if x, err := NewTimeline(read(t, w.play(t)), madeUp(t, linkRate), 0, Links{}); err != nil || len(x.Recorded) != 0 {
		t.Errorf("without spans: %v, %v", x, err)
	}
}
