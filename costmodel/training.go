package costmodel

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// TrainingFact is what whole training steps, measured on a device type that trained alone,
// took over the sum of the calls that they are made of. Calls are measured one by one, on a
// device that is cool and at its full clock; in a step their load slows the clock, and tensors
// are added, converted and copied between the calls that laws are of.
//
// Plans are predicted by laws times these ratios (NewPredictor). The laws of a profile, and what
// check says of them, are of single calls (NewCallPredictor).
type TrainingFact struct {
	Device    string  `json:"device"`
	Layers    float64 `json:"layers"`    // attention, products, and what is done element by element
	Loss      float64 `json:"loss"`      // the cross-entropy of a chunk of logits
	Optimizer float64 `json:"optimizer"` // the update of the parameters (AdamW)
	Steps     int     `json:"steps"`     // measured, of different models, lengths or recomputation; 0 where assumed
	// Ratio is the half width of the 90 % interval of a step's time that the ratios leave, as
	// a factor above 1: by how much steps were off what the ratios of the others made of them.
	// It is one Doubt of all laws on the device.
	Ratio float64   `json:"ratio"`
	From  doc.Input `json:"from,omitzero"` // the file of the steps
	// Assumed: no step was measured of the device type; why it is taken to train as another did.
	Assumed string `json:"assumed,omitempty"`

	// Lent: of a device that no step was measured of, whose ratios these are. No file has it.
	Lent string `json:"-"`
}

// of is the ratio of an op.
func (t TrainingFact) of(kind op.Kind) float64 {
	switch kind {
	case op.KindCEChunk:
		return t.Loss
	case op.KindAdamW:
		return t.Optimizer
	}
	return t.Layers
}

// LeastRatio and MostRatio bound the ratios of whole steps to their calls: what is farther off is
// no step of this device, or one that something else disturbed.
const (
	LeastRatio = 0.1
	MostRatio  = 100
)

// LentRatio is the half width, as a factor, that ratios lent by another device type add. Nobody
// measured two yet: it is what a step that nothing was measured of is allowed (fit).
const LentRatio = 1.1

func (p *Profile) validateTraining() error {
	seen := map[string]bool{}
	for i, t := range p.Training {
		known := slices.ContainsFunc(p.Devices, func(d op.DeviceType) bool { return d.Name == t.Device })
		if !known || seen[t.Device] {
			return fmt.Errorf("training[%d].device: %q: want a device of this profile, once", i, t.Device)
		}
		seen[t.Device] = true
		for _, r := range []struct {
			name string
			of   float64
		}{{"layers", t.Layers}, {"loss", t.Loss}, {"optimizer", t.Optimizer}} {
			if !(r.of >= LeastRatio && r.of <= MostRatio) {
				return fmt.Errorf("training[%d].%s: %v: want a factor from %v to %v", i, r.name, r.of, LeastRatio, MostRatio)
			}
		}
		switch {
		case !(t.Ratio >= 1 && t.Ratio <= MostRatio):
			return fmt.Errorf("training[%d].ratio: %v: want a factor of 1 to %v", i, t.Ratio, MostRatio)
		case t.Assumed == "" && t.Steps < 1:
			return fmt.Errorf("training[%d].steps: %d: want at least one, or assumed to say why there is none", i, t.Steps)
		case t.Assumed != "" && (t.Steps != 0 || t.From != doc.Input{}):
			return fmt.Errorf("training[%d].assumed: %q beside %d steps from %q: want either", i, t.Assumed, t.Steps, t.From.Path)
		}
	}
	return nil
}

// inTraining is the profile whose laws are of calls in training steps, times the ratios of
// whole steps (TrainingFact). It is what plans are predicted by; p itself, of calls one by one,
// is what points are compared with.
//
// A device type that nothing is known of takes the geometric mean of the ratios that were measured
// of others, a GPU of GPUs: if its calls stayed as fast as alone, it would seem faster beside them
// than it is, and be given more of the work. What is assumed of one is lent to none. How far the
// ratios are off is one doubt of all laws of a device type, which plans that use it alike do not
// differ by. A profile without any ratio is returned as it is.
func (p *Profile) inTraining() *Profile {
	if len(p.Training) == 0 {
		return p
	}
	in := *p
	in.Laws, in.Training = slices.Clone(p.Laws), slices.Clone(p.Training)
	of := map[string]TrainingFact{}
	for _, t := range p.Training {
		of[t.Device] = t
	}
	for _, d := range p.Devices {
		if _, known := of[d.Name]; known {
			continue
		}
		if t, ok := p.usualRatios(isGPU(d)); ok {
			t.Device = d.Name
			in.Training, of[d.Name] = append(in.Training, t), t
		}
	}
	for i := range in.Laws {
		// Copies are moved by engines of their own: no step told of them.
		kind := in.Laws[i].Op
		if t, ok := of[in.Laws[i].Device]; ok && kind != op.KindH2D && kind != op.KindD2H {
			in.Laws[i] = in.Laws[i].Slowed(t.of(kind))
			in.Laws[i].InTraining = &t
		}
	}
	return &in
}

// isGPU says whether anything of a datasheet is known of a device type; of processors nothing is.
func isGPU(d op.DeviceType) bool { return d.Sheet != (op.Sheet{}) }

// usualRatios are what a GPU, or another device, takes that nothing is known of; false where no
// step of such was measured.
func (p *Profile) usualRatios(gpu bool) (TrainingFact, bool) {
	var names []string
	var layers, loss, optimizer float64
	u := TrainingFact{Ratio: LentRatio}
	for _, t := range p.Training {
		kin := slices.ContainsFunc(p.Devices, func(d op.DeviceType) bool { return d.Name == t.Device && isGPU(d) == gpu })
		if t.Assumed != "" || !kin {
			continue
		}
		names = append(names, t.Device)
		layers, loss, optimizer = layers+math.Log(t.Layers), loss+math.Log(t.Loss), optimizer+math.Log(t.Optimizer)
		u.Steps, u.Ratio = u.Steps+t.Steps, max(u.Ratio, CombineFactors(LentRatio, t.Ratio))
	}
	n := float64(len(names))
	u.Layers, u.Loss, u.Optimizer, u.Lent = math.Exp(layers/n), math.Exp(loss/n), math.Exp(optimizer/n), strings.Join(names, ", ")
	return u, n > 0
}

// Training is by which ratios calls on a device type are predicted; false where they are
// predicted as measured one by one.
func (q *Predictor) Training(device string) (TrainingFact, bool) {
	t, ok := q.training[device]
	return t, ok
}

// inTraining says of which devices whole steps were measured: in one sentence of those whose
// ratios are the same, as lent ones are.
func (c *coster) inTraining() []string {
	var facts []TrainingFact
	var said []string
	devices := map[TrainingFact][]string{}
	for _, u := range c.uses {
		if u.err != nil || slices.Contains(said, u.law.On()) {
			continue
		}
		if t, ok := c.q.training[u.law.On()]; ok {
			said = append(said, t.Device)
			alike := t
			alike.Device, alike.From = "", doc.Input{}
			if len(devices[alike]) == 0 {
				facts = append(facts, alike)
			}
			devices[alike] = append(devices[alike], t.Device)
		}
	}
	var out []string
	for _, t := range facts {
		on := devices[t]
		out = append(out, fmt.Sprintf("a call on %s takes as long as in %s, not as alone: in layers %.2f, in the loss %.2f, in the optimizer %.2f times as long, which may be off by %.1f %% in all of them at once",
			strings.Join(on, ", "), t.source(len(on)), t.Layers, t.Loss, t.Optimizer, 100*(t.Ratio-1)))
	}
	return out
}

// elsewhere says that no step was measured of the device type itself.
func (t TrainingFact) elsewhere() bool { return t.Assumed != "" || t.Lent != "" }

// source says which steps the ratios are of, that so many device types have.
func (t TrainingFact) source(types int) string {
	it, own := "it", "it"
	if types > 1 {
		it, own = "them", "each"
	}
	steps := "the " + units.Count(t.Steps, "whole training step") + " measured "
	switch {
	case t.Assumed != "":
		return t.Assumed + ", which is assumed"
	case t.Lent != "":
		return steps + "on " + t.Lent + ", for none was of " + it + " (fit --training)"
	}
	return steps + "of " + own
}

// doubt is what the device's laws have in common: how far their ratios are off.
func (t TrainingFact) doubt() Doubt { return Doubt{trainingDoubt + t.Device, t.Ratio} }

const trainingDoubt = "the time of whole training steps on "

// StepPart is a part of a training step that is measured as a whole.
type StepPart string

// The parts of a step: the layers' forward passes, the loss with the final norm and the
// output projection, the layers' backward passes with what they compute again, and the
// optimizer.
const (
	StepForward   StepPart = "forward"
	StepLoss      StepPart = "loss"
	StepBackward  StepPart = "backward"
	StepOptimizer StepPart = "optimizer"
)

// StepParts are all parts of a step in their order.
func StepParts() []StepPart {
	return []StepPart{StepForward, StepLoss, StepBackward, StepOptimizer}
}

// Alone predicts one step of a device that trains alone: of every part the seconds by op.
//
// Errors: a job of several devices, an invalid one, or what laws are missing, as of Simulate.
func (q *Predictor) Alone(j Job) (map[StepPart]map[op.Kind]units.Seconds, error) {
	if n := len(j.Cluster.Ranks()); n != 1 {
		return nil, fmt.Errorf("cluster: %d devices: want one that trains alone", n)
	}
	s, err := newSim(q, j)
	if err != nil {
		return nil, err
	}
	all := []units.Tokens{j.SeqLen}
	s.layout = ZigZag(all, Singles(all, j.Model.QHeads))
	if err := s.seat(); err != nil {
		return nil, err
	}
	acc, layers := s.partAccounts(0), units.Seconds(j.Model.Layers)
	out := map[StepPart]map[op.Kind]units.Seconds{}
	for _, of := range []struct {
		to    StepPart
		from  part
		times units.Seconds
	}{
		{StepForward, linearForward, layers},
		{StepForward, attentionForward, layers},
		{StepLoss, lossPart, 1},
		{StepBackward, linearBackward, layers},
		{StepBackward, attentionBackward, layers},
		{StepBackward, recompute, layers * j.again()},
		{StepOptimizer, optimizerPart, 1},
	} {
		if out[of.to] == nil {
			out[of.to] = map[op.Kind]units.Seconds{}
		}
		for _, e := range acc[of.from].laws {
			out[of.to][e.of.Op] += e.Mid * of.times
		}
	}
	return out, s.err
}

// again is how often the backward pass computes a layer's forward pass anew.
func (j Job) again() units.Seconds {
	if j.Recompute == RecomputeFull {
		return 1
	}
	return 0
}
