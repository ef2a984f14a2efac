package fit

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// TrainingSchema is the schema of documents of whole training steps.
const TrainingSchema = "evenkeel.training/v1"

// Training is the document of whole training steps, each of a device that trained alone:
// python/examples/train_step.py writes it.
type Training struct {
	doc.Header
	GPU   string        `json:"gpu,omitempty"`   // as its driver calls it
	Model string        `json:"-"`               // as recordings that others made may call it; empty where unknown
	Stack string        `json:"stack,omitempty"` // the versions that it ran on
	Steps []TrainedStep `json:"steps"`
}

// TrainedStep is one job's steps.
type TrainedStep struct {
	Name   string        `json:"name"`
	Kernel string        `json:"kernel,omitempty"` // of attention
	Job    costmodel.Job `json:"job"`
	Times  []StepTimes   `json:"times"`
	// Peak is the most memory that tensors took, Reserved what the allocator held for them.
	Peak     units.Bytes `json:"peak_bytes,omitzero"`
	Reserved units.Bytes `json:"reserved_bytes,omitzero"`
	// SMClock (Hz) and Power (W) are the GPU's medians while it trained; 0 where nobody looked.
	SMClock float64 `json:"sm_clock_hz,omitzero"`
	Power   float64 `json:"power_w,omitzero"`
}

// StepTimes is what the parts of one step took (costmodel.StepPart).
type StepTimes struct {
	Forward   units.Seconds `json:"forward_s"`
	Loss      units.Seconds `json:"loss_s"`
	Backward  units.Seconds `json:"backward_s"`
	Optimizer units.Seconds `json:"optimizer_s"`
}

// Of is the time of a part.
func (t StepTimes) Of(p costmodel.StepPart) units.Seconds {
	switch p {
	case costmodel.StepForward:
		return t.Forward
	case costmodel.StepLoss:
		return t.Loss
	case costmodel.StepBackward:
		return t.Backward
	}
	return t.Optimizer
}

// Median is the median of a part over the steps.
func (s *TrainedStep) Median(p costmodel.StepPart) units.Seconds {
	var of []float64
	for _, t := range s.Times {
		of = append(of, float64(t.Of(p)))
	}
	return units.Seconds(stats.Median(of))
}

// Device is the device type that trained.
func (s *TrainedStep) Device() string { return s.Job.Cluster.Ranks()[0].Device }

// SchemaName implements doc.Document.
func (*Training) SchemaName() string { return TrainingSchema }

// Validate implements doc.Document.
func (t *Training) Validate() error {
	if len(t.Steps) == 0 {
		return fmt.Errorf("steps: none: want at least one")
	}
	for i := range t.Steps {
		if err := t.Steps[i].validate(); err != nil {
			return fmt.Errorf("steps[%d].%w", i, err)
		}
	}
	return nil
}

func (s *TrainedStep) validate() error {
	if err := s.Job.Validate(); err != nil {
		return fmt.Errorf("job.%w", err)
	}
	if n := len(s.Job.Cluster.Ranks()); n != 1 {
		return fmt.Errorf("job.cluster: %d devices: want one that trains alone", n)
	}
	if s.Job.Accumulate > 1 {
		return fmt.Errorf("job.grad_accumulation: %d: want steps of one micro-batch", s.Job.Accumulate)
	}
	if len(s.Times) == 0 {
		return fmt.Errorf("times: none: want those of at least one step")
	}
	for i, t := range s.Times {
		for _, p := range costmodel.StepParts() {
			if at := float64(t.Of(p)); !(at >= shortestPart && at <= longestPart) {
				return fmt.Errorf("times[%d].%s_s: %v: want %v to %v seconds", i, p, at, shortestPart, longestPart)
			}
		}
	}
	if s.Peak < 0 || s.Reserved < 0 {
		return fmt.Errorf("peak_bytes, reserved_bytes: %d, %d: must not be negative", int64(s.Peak), int64(s.Reserved))
	}
	if !(s.SMClock >= 0 && s.SMClock < 1e11 && s.Power >= 0 && s.Power < 1e6) {
		return fmt.Errorf("sm_clock_hz, power_w: %v, %v: want 0 Hz to 100 GHz and 0 W to 1 MW", s.SMClock, s.Power)
	}
	return nil
}

const (
	// A part of a step takes no less than a call, and no more than a day; in seconds.
	shortestPart, longestPart = 1e-6, 1e5

	// A part that is 3 % off what the ratios make of it weighs as much as a ratio of 1.5 or
	// 0.5: a few steps move the ratios, and one that no step tells of stays 1.
	partError  = 0.03
	ratioPrior = 0.5

	// Half width of the 90 % interval of steps where there is one alone, which says nothing
	// of others. Steps of three models on an H100 were 5 % off at most by the ratios of the
	// other two (results/evidence/h100).
	unjudged = 1.1

	// mostOff times what its calls take a step is not believed.
	mostOff = 10.0
)

// Onto gives the profile the ratios of whole training steps to their calls, by device type: see
// costmodel.TrainingFact. What it had of a device is replaced; from is the file of t. The ratios
// are those of least squares over the parts of all steps, each in parts of what it took. The
// error is of every step by the ratios of the others.
//
// Errors: steps of another GPU, or of a device that the profile lacks; a step that takes ten
// times what its calls do, or a tenth; laws that are missing.
func (t *Training) Onto(p *costmodel.Profile, from doc.Input) error {
	on, err := t.On(p)
	if err != nil {
		return err
	}
	q := costmodel.NewCallPredictor(p)
	rows := map[string][]trained{}
	var order []string
	for i := range on.Steps {
		s := &on.Steps[i]
		alone, err := q.Alone(s.Job)
		if err != nil {
			return fmt.Errorf("steps[%d] (%s): %w", i, s.Name, err)
		}
		if rows[s.Device()] == nil {
			order = append(order, s.Device())
		}
		row := trainedBy(s, alone)
		if off := math.Exp(row.off([stepRatios]float64{1, 1, 1})); off > mostOff || off < 1/mostOff {
			return fmt.Errorf("steps[%d] (%s): took %.3g times what its calls do: another device's step, or one that something else disturbed; measure it again, or leave it out", i, s.Name, off)
		}
		rows[s.Device()] = append(rows[s.Device()], row)
	}
	for _, device := range order {
		fact := factOf(device, rows[device])
		fact.From = from
		if i := slices.IndexFunc(p.Training, func(f costmodel.TrainingFact) bool { return f.Device == device }); i >= 0 {
			p.Training[i] = fact
		} else {
			p.Training = append(p.Training, fact)
		}
	}
	return nil
}

// On is the document with its devices under the profile's names for them: steps that were
// planned by h100_sxm are of a reference profile's h100_sxm/trtllm. t is not changed.
//
// Errors: a device that the profile lacks, or has several of, or that is another GPU.
func (t *Training) On(p *costmodel.Profile) (*Training, error) {
	on := *t
	on.Steps = slices.Clone(t.Steps)
	for i := range on.Steps {
		s := &on.Steps[i]
		cluster, err := s.Job.Cluster.Named(p)
		if err != nil {
			return nil, fmt.Errorf("steps[%d] (%s): job.cluster: %w; plan the steps with this profile", i, s.Name, err)
		}
		s.Job.Cluster = cluster
		d := p.Devices[slices.IndexFunc(p.Devices, func(d op.DeviceType) bool { return d.Name == s.Device() })]
		if t.GPU != "" && d.Model != "" && t.GPU != d.Model && t.Model != d.Model {
			return nil, fmt.Errorf("gpu: %q: the profile's %s is %q; take steps that were measured on it", t.GPU, d.Name, d.Model)
		}
	}
	return &on, nil
}

// trained is a measured step by part: what its calls take in layers, in the loss and in the
// optimizer, and what the part took.
type trained [][stepRatios + 1]float64

const stepRatios = 3

func trainedBy(s *TrainedStep, alone map[costmodel.StepPart]map[op.Kind]units.Seconds) trained {
	var rows trained
	for _, p := range costmodel.StepParts() {
		var row [stepRatios + 1]float64
		for _, kind := range slices.Sorted(maps.Keys(alone[p])) { // the same sum to the last digit
			row[ratioOf(kind)] += float64(alone[p][kind])
		}
		row[stepRatios] = float64(s.Median(p))
		rows = append(rows, row)
	}
	return rows
}

func ratioOf(kind op.Kind) int {
	switch kind {
	case op.KindCEChunk:
		return 1
	case op.KindAdamW:
		return 2
	}
	return 0
}

func factOf(device string, steps []trained) costmodel.TrainingFact {
	of := ratiosOf(steps, -1)
	f := costmodel.TrainingFact{Device: device, Layers: of[0], Loss: of[1], Optimizer: of[2], Steps: len(steps), Ratio: unjudged}
	if len(steps) == 1 { // it has its own ratios, but for what the prior holds back
		f.Ratio = max(f.Ratio, math.Exp(math.Abs(steps[0].off(of))))
	} else {
		var off []float64
		for i, s := range steps {
			off = append(off, math.Abs(s.off(ratiosOf(steps, i))))
		}
		// Of few steps the 90 % quantile is between the largest two: the next step may be worse.
		f.Ratio = math.Exp(stats.Quantile(off, 0.9) * (1 + 1/float64(len(steps))))
	}
	return f
}

// off is log(measured / predicted) of the whole step.
func (s trained) off(of [stepRatios]float64) float64 {
	var took, want float64
	for _, row := range s {
		took += row[stepRatios]
		for k, r := range of {
			want += r * row[k]
		}
	}
	return math.Log(took / want)
}

// ratiosOf are the ratios of all steps but one. With the prior there is always a solution, and
// one above 0, for times are.
func ratiosOf(steps []trained, without int) [stepRatios]float64 {
	var rows [][stepRatios + 1]float64
	for i, s := range steps {
		if i == without {
			continue
		}
		for _, row := range s {
			var scaled [stepRatios + 1]float64
			for k := range stepRatios {
				scaled[k] = row[k] / row[stepRatios] / partError
			}
			scaled[stepRatios] = 1 / partError
			rows = append(rows, scaled)
		}
	}
	for k := range stepRatios {
		var prior [stepRatios + 1]float64
		prior[k], prior[stepRatios] = 1/ratioPrior, 1/ratioPrior
		rows = append(rows, prior)
	}
	a, b := mat.NewDense(len(rows), stepRatios, nil), make([]float64, len(rows))
	for i, row := range rows {
		a.SetRow(i, row[:stepRatios])
		b[i] = row[stepRatios]
	}
	x, err := stats.NNLS(a, b)
	if err != nil { // all numbers are finite
		panic(err)
	}
	var out [stepRatios]float64
	for k := range out {
		out[k] = min(max(x[k], costmodel.LeastRatio), costmodel.MostRatio)
	}
	return out
}
