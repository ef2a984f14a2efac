package comparison

import (
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
)

// Timeline is a plan's step as predicted, and as recorded in the block in the
// middle.
type Timeline struct {
	Plan, Block int
	Pipeline    bool     // its micro-batches are chunks
	Runs        []string // of tasks, the modules of the runs that its micro-batches are
	Devices     []string // by rank
	Predicted   []costmodel.ReplayTask
	Recorded    []costmodel.ReplayTask
}

// NewTimeline puts the predicted and the recorded timeline of a plan side by side.
// Errors are those of New.
func NewTimeline(rec *Recording, p *costmodel.Profile, plan int, links Links) (*Timeline, error) {
	if plan < 0 || plan >= len(rec.Header.Plans) {
		return nil, fmt.Errorf("plan: %d: the trace has plans 0 to %d", plan, len(rec.Header.Plans)-1)
	}
	c, err := newComparison(rec, p, links)
	if err != nil {
		return nil, err
	}
	x := &rec.Header.Plans[plan]
	t := &Timeline{Plan: plan, Block: rec.middle(plan)[0], Pipeline: x.Pipeline != nil, Runs: runsOf(x), Predicted: c.courses[plan].tasks}
	for _, r := range rec.Header.Ranks {
		t.Devices = append(t.Devices, r.Device)
	}
	for _, s := range rec.runs[plan][t.Block].all() {
		t.Recorded = append(t.Recorded, costmodel.ReplayTask{ReplayKey: s.ReplayKey, Start: s.start, Time: s.took})
	}
	return t, nil
}
