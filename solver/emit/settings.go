package emit

import (
	"cmp"
	"fmt"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/solver"
)

// The fields of a job that a plan decides or presumes.
const (
	fieldRecompute  = "recompute"
	fieldZero       = "zero"
	fieldAccumulate = "grad_accumulation"
	fieldBuffers    = "ring_buffers"
	fieldLoss       = "loss_chunk_tokens"
)

// settingsOf are the settings of a job, as if all were taken over.
func settingsOf(job costmodel.Job) []Field {
	fields := []Field{
		{Name: fieldRecompute, Plan: string(job.Recompute)},
		{Name: fieldZero, Plan: string(cmp.Or(job.Zero, costmodel.Zero3))},
		{Name: fieldAccumulate, Plan: fmt.Sprint(max(1, job.Accumulate))},
		{Name: fieldBuffers, Plan: fmt.Sprint(job.RingBuffers)},
		{Name: fieldLoss, Plan: fmt.Sprint(int64(job.LossChunk))},
	}
	for i := range fields {
		fields[i].Emitted, fields[i].Verdict = fields[i].Plan, Exact
	}
	return fields
}

// elsewhere are the settings of a job of which a framework's file says nothing but some.
func elsewhere(job costmodel.Job, why string, but ...Field) []Field {
	fields := settingsOf(job)
	for i := range fields {
		fields[i].Emitted, fields[i].Verdict, fields[i].Why = "-", Dropped, why
		for _, b := range but {
			if b.Name == fields[i].Name {
				fields[i] = b
			}
		}
	}
	return fields
}

// doubleBuffers is how many KV blocks the rings of today hold beside their own: one that is
// computed and one that arrives.
const doubleBuffers = 2

// asToday is a job with the buffers of rings and the logits of frameworks as they are.
func asToday(job costmodel.Job) costmodel.Job {
	job.RingBuffers, job.LossChunk = doubleBuffers, job.SeqLen
	return job
}

// ofToday corrects the verdicts on what asToday sets.
func ofToday(fields []Field, job costmodel.Job) []Field {
	for i := range fields {
		switch f := &fields[i]; {
		case f.Name == fieldBuffers && job.RingBuffers == doubleBuffers, f.Name == fieldLoss && job.LossChunk == job.SeqLen:
			f.Emitted, f.Verdict, f.Why = f.Plan, Exact, ""
		case f.Name == fieldBuffers:
			f.Emitted, f.Verdict, f.Why = fmt.Sprint(doubleBuffers), Rounded, "a block that is computed and one that arrives"
		case f.Name == fieldLoss:
			f.Emitted, f.Verdict, f.Why = "all", Rounded, "logits of all of a rank's tokens at once, whose memory is counted so"
		}
	}
	return fields
}

// ranksToRun says where the framework's ranks are.
func ranksToRun(p *solver.Plan, v *variant) string {
	if len(v.ranks) == len(p.Ranks) {
		return "all devices of the cluster"
	}
	text, last := "", ""
	for _, r := range v.ranks {
		k := p.Ranks[r]
		if where := k.Node + "/" + k.Device; where != last {
			if text != "" {
				text += ", "
			}
			text, last = text+k.Device+" of "+k.Node, where
		}
	}
	return fmt.Sprintf("ranks %s of the cluster (%s)", Stretches(v.ranks), text)
}
