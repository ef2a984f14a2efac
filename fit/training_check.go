package fit

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// TrainingReport compares whole training steps with a profile's plans of their jobs.
type TrainingReport struct {
	Simulated bool           `json:"simulated"`
	GPU       string         `json:"gpu,omitempty"`
	Stack     string         `json:"stack,omitempty"`
	Limit     float64        `json:"limit_log"` // of |log(predicted/measured)| of a step (ReplayLimits.Step)
	Steps     []CheckedStep  `json:"steps"`
	Mean      float64        `json:"mean_log"` // of |log(predicted/measured)| over the steps
	Worst     float64        `json:"worst_log"`
	Inside    int            `json:"inside"` // steps in their 90 % intervals
	Verdict   Verdict        `json:"verdict"`
	From      []TrainedFacts `json:"ratios"` // by which the steps were predicted
}

// TrainedFacts are the ratios of a device type; none where steps are predicted by calls one by
// one.
type TrainedFacts struct {
	Device string                  `json:"device"`
	Fact   *costmodel.TrainingFact `json:"fact,omitempty"`
	// Own: they come from the steps under check. Each of these is then predicted by the ratios of
	// the others, and one alone as if there were none.
	Own bool `json:"own"`
}

// CheckedStep is one job's step as predicted and as measured.
type CheckedStep struct {
	Name      string              `json:"name"`
	Device    string              `json:"device"`
	SeqLen    units.Tokens        `json:"seq_len_tokens"`
	Recompute costmodel.Recompute `json:"recompute"`
	Predicted costmodel.Estimate  `json:"predicted"`
	Measured  units.Seconds       `json:"measured_s"` // the sum of the medians of the parts
	Log       float64             `json:"log"`        // log(predicted/measured)
	Inside    bool                `json:"inside"`     // the interval
	Parts     []CheckedPart       `json:"parts"`
	// Memory that tensors took at the fullest; 0 where it was not measured.
	PredictedPeak units.Bytes `json:"predicted_peak_bytes"`
	Peak          units.Bytes `json:"peak_bytes,omitzero"`
	Verdict       Verdict     `json:"verdict"`
	Why           string      `json:"why,omitempty"`
}

// CheckedPart is a part of a step.
type CheckedPart struct {
	Part      costmodel.StepPart `json:"part"`
	Predicted units.Seconds      `json:"predicted_s"`
	Measured  units.Seconds      `json:"measured_s"`
}

// mostUnder is by how much less peak memory than a step took may be predicted: a plan that
// promises too little ends in an error. What it promises too much is not judged, since the
// formula has a chunk's logits in it although they are gone at the peak.
const mostUnder = 0.03

// Check predicts the steps by a profile. hash is that of the document's file.
//
// Errors: a device that the profile lacks or that is another GPU, or missing laws.
func (t *Training) Check(p *costmodel.Profile, hash string, limits ReplayLimits) (*TrainingReport, error) {
	on, err := t.On(p)
	if err != nil {
		return nil, err
	}
	r := &TrainingReport{Simulated: p.Simulated, GPU: t.GPU, Stack: t.Stack, Limit: limits.Step, Verdict: Pass}
	for i := range on.Steps {
		of, err := p, error(nil)
		if f := factOn(p, on.Steps[i].Device()); f != nil && f.From.SHA256 == hash {
			if of, err = on.byOthers(p, i); err != nil {
				return nil, err
			}
		}
		s, err := on.Steps[i].check(of, limits)
		if err != nil {
			return nil, fmt.Errorf("steps[%d] (%s): %w", i, on.Steps[i].Name, err)
		}
		r.add(s)
		if !slices.ContainsFunc(r.From, func(f TrainedFacts) bool { return f.Device == s.Device }) {
			f := factOn(p, s.Device)
			if f == nil {
				if lent, ok := costmodel.NewPredictor(of).Training(s.Device); ok {
					f = &lent
				}
			}
			r.From = append(r.From, TrainedFacts{s.Device, f, f != nil && f.From.SHA256 == hash})
		}
	}
	r.Mean /= float64(len(r.Steps))
	return r, nil
}

func factOn(p *costmodel.Profile, device string) *costmodel.TrainingFact {
	if i := slices.IndexFunc(p.Training, func(f costmodel.TrainingFact) bool { return f.Device == device }); i >= 0 {
		return &p.Training[i]
	}
	return nil
}

func (r *TrainingReport) add(s CheckedStep) {
	r.Steps = append(r.Steps, s)
	r.Mean, r.Worst = r.Mean+math.Abs(s.Log), max(r.Worst, math.Abs(s.Log))
	if s.Inside {
		r.Inside++
	}
	if s.Verdict == Fail {
		r.Verdict = Fail
	}
}

// byOthers is the profile with the ratios of all steps but one: of a device's only step, with
// none.
func (t *Training) byOthers(p *costmodel.Profile, without int) (*costmodel.Profile, error) {
	device := t.Steps[without].Device()
	rest, others := *p, Training{}
	rest.Training = slices.DeleteFunc(slices.Clone(p.Training), func(f costmodel.TrainingFact) bool { return f.Device == device })
	others.Steps = slices.Delete(slices.Clone(t.Steps), without, without+1)
	if len(others.Steps) == 0 {
		return &rest, nil
	}
	return &rest, others.Onto(&rest, factOn(p, device).From)
}

func (s *TrainedStep) check(p *costmodel.Profile, limits ReplayLimits) (CheckedStep, error) {
	out := CheckedStep{Name: s.Name, Device: s.Device(), SeqLen: s.Job.SeqLen, Recompute: s.Job.Recompute, Peak: s.Peak, Verdict: Pass}
	q := costmodel.NewPredictor(p)
	parts, err := q.Alone(s.Job)
	if err != nil {
		return out, err
	}
	for _, part := range costmodel.StepParts() {
		x := CheckedPart{Part: part, Measured: s.Median(part)}
		for _, kind := range slices.Sorted(maps.Keys(parts[part])) {
			x.Predicted += parts[part][kind]
		}
		out.Measured += x.Measured
		out.Parts = append(out.Parts, x)
	}
	all := []units.Tokens{s.Job.SeqLen}
	step, err := costmodel.Simulate(q, s.Job, costmodel.ZigZag(all, costmodel.Singles(all, s.Job.Model.QHeads)), costmodel.SimOptions{})
	if err != nil {
		return out, err
	}
	out.Predicted, out.PredictedPeak = step.Time, step.Ranks[0].Memory.Peak()
	out.Inside = step.Time.Lo <= out.Measured && out.Measured <= step.Time.Hi
	out.Log = math.Log(float64(step.Time.Mid / out.Measured))
	under := 0.0
	if s.Peak > 0 {
		under = 1 - float64(out.PredictedPeak)/float64(s.Peak)
	}
	switch {
	case math.Abs(out.Log) > limits.Step:
		out.Verdict, out.Why = Fail, fmt.Sprintf("the step is %s off, limit %s", units.Percent(math.Abs(out.Log)), units.Percent(limits.Step))
	case under > mostUnder:
		out.Verdict, out.Why = Fail, fmt.Sprintf("%s of its peak memory were not predicted, limit %s", units.Percent(under), units.Percent(mostUnder))
	}
	return out, nil
}

// Failed says whether a step is above its limits.
func (r *TrainingReport) Failed() bool { return r.Verdict == Fail }
