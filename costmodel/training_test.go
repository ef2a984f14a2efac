package costmodel

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// trainedOn gives a profile ratios for its device types.
func trainedOn(p *Profile, of map[string]TrainingFact) *Profile {
	for device, t := range of {
		t.Device, t.Steps = device, 3
		p.Training = append(p.Training, t)
	}
	return p
}

// aloneOf gives one rank all tokens and heads.
func aloneOf(j Job) Layout {
	all := []units.Tokens{j.SeqLen}
	return ZigZag(all, Singles(all, j.Model.QHeads))
}

// TestStepsTakeTheRatiosOfWholeSteps: where every call takes 1.3 times as long, so does a step
// of one device, whatever the others' ratios are, and its interval has the ratios' in it. The
// profile itself stays one of calls.
func TestStepsTakeTheRatiosOfWholeSteps(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 91))
		p, x := world(t, rng, faster{}), randomPlan(rng)
		j := x.job
		j.Cluster.Nodes = []Node{{Name: "n0", Devices: x.job.Cluster.Nodes[0].Devices[:1]}}
		j.Cluster.Nodes[0].Devices[0].Count = 1
		device := j.Cluster.Nodes[0].Devices[0].Device
		layout := aloneOf(j)
		alone := mustSimulate(t, p, j, layout)
		trainedOn(p, map[string]TrainingFact{"fast": {Layers: 1.3, Loss: 1.3, Optimizer: 1.3, Ratio: 1.5}, "slow": {Layers: 1.3, Loss: 1.3, Optimizer: 1.3, Ratio: 1.5}})
		for i := range p.Training {
			if p.Training[i].Device != device {
				p.Training[i] = TrainingFact{Device: p.Training[i].Device, Layers: 9, Loss: 9, Optimizer: 9, Ratio: 9, Steps: 1}
			}
		}
		before := *p
		step := mustSimulate(t, p, j, layout)
		if ratio := float64(step.Time.Mid / alone.Time.Mid); math.Abs(ratio/1.3-1) > 1e-12 {
			t.Errorf("seed %d: a step takes %v times as long", seed, ratio)
		}
		if up, down := step.Time.Hi/step.Time.Mid, step.Time.Lo/step.Time.Mid; up < 1.5 || down > 1/1.5 {
			t.Errorf("seed %d: interval from %v to %v of the time", seed, down, up)
		}
		calls, err := Simulate(NewCallPredictor(p), j, layout, SimOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(before, *p) || calls.Time != alone.Time {
			t.Errorf("seed %d: the profile of calls is another one", seed)
		}
	}
}

// TestDevicesWithoutStepsTakeTheOthersRatios: else they would seem faster beside them than they
// are.
func TestDevicesWithoutStepsTakeTheOthersRatios(t *testing.T) {
	p := world(t, rand.New(rand.NewPCG(5, 95)), faster{})
	j := randomPlan(rand.New(rand.NewPCG(5, 96))).job
	j.Cluster.Nodes = []Node{{Name: "n0", Devices: j.Cluster.Nodes[0].Devices[:1]}}
	j.Cluster.Nodes[0].Devices[0].Device, j.Cluster.Nodes[0].Devices[0].Count = "slow", 1
	alone := mustSimulate(t, p, j, aloneOf(j))
	in := trainedOn(p, map[string]TrainingFact{"fast": {Layers: 1.3, Loss: 1.3, Optimizer: 1.3, Ratio: 1.02}})
	step := mustSimulate(t, in, j, aloneOf(j))
	if ratio := float64(step.Time.Mid / alone.Time.Mid); math.Abs(ratio/1.3-1) > 1e-12 {
		t.Errorf("a step takes %v times as long", ratio)
	}
	if up := step.Time.Hi / step.Time.Mid; up < LentRatio {
		t.Errorf("up to %v of the time: ratios of another device are not as sure as its own", up)
	}
	if said := strings.Join(step.Warnings, "\n"); !strings.Contains(said, "a call on slow takes as long as in the 3 whole training steps measured on fast, for none was of it (fit --training)") {
		t.Errorf("it does not say whose ratios it takes:\n%s", said)
	}
	p.Training = []TrainingFact{{Device: "fast", Layers: 2, Loss: 1, Optimizer: 1, Ratio: 1.2, Steps: 1}, {Device: "slow", Layers: 8, Loss: 1, Optimizer: 4, Ratio: 1, Steps: 2}}
	if u, ok := p.usualRatios(false); !ok || math.Abs(u.Layers-4) > 1e-12 || math.Abs(u.Optimizer-2) > 1e-12 || u.Steps != 3 || u.Lent != "fast, slow" || u.Ratio <= 1.2 {
		t.Errorf("%+v", u)
	}
}

// Ratios that several device types have are told once, in words for several.
func TestRatiosAlikeAreToldTogether(t *testing.T) {
	p := usual(t)
	third := p.Devices[slices.IndexFunc(p.Devices, func(d op.DeviceType) bool { return d.Name == "slow" })]
	third.Name = "third"
	p.Devices = append(p.Devices, third)
	for _, l := range slices.Clone(p.Laws) {
		if l.Device == "slow" {
			l.Device = "third"
			p.Laws = append(p.Laws, l)
		}
	}
	tokens := []units.Tokens{256, 256, 256, 256}
	j := testJob(cluster(t, "1x(2 fast + 1 slow + 1 third)", p, "bus", ""), tokens)
	told := func(facts map[string]TrainingFact) (told []string) {
		for _, w := range mustSimulate(t, trainedOn(p, facts), j, ringOf(tokens)).Warnings {
			if how, ok := strings.CutPrefix(w, "a call on "); ok {
				told = append(told, strings.Split(how, ", not as alone")[0])
			}
		}
		return told
	}
	fast := TrainingFact{Layers: 1.3, Loss: 1.3, Optimizer: 1.3, Ratio: 1.02}
	want := []string{"fast takes as long as in the 3 whole training steps measured of it", "slow, third takes as long as in the 3 whole training steps measured on fast, for none was of them (fit --training)"}
	if got := told(map[string]TrainingFact{"fast": fast}); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	want = []string{"fast, slow, third takes as long as in the 3 whole training steps measured of each"}
	if got := told(map[string]TrainingFact{"fast": fast, "slow": fast, "third": fast}); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestEveryPartTakesItsRatio: layers, loss and optimizer each their own, as Alone has them.
func TestEveryPartTakesItsRatio(t *testing.T) {
	p := usual(t)
	j := randomPlan(rand.New(rand.NewPCG(1, 92))).job
	j.Cluster.Nodes = []Node{{Name: "n0", Devices: j.Cluster.Nodes[0].Devices[:1]}}
	j.Cluster.Nodes[0].Devices[0].Device, j.Cluster.Nodes[0].Devices[0].Count = "fast", 1
	j.Accumulate = 0
	of := func(p *Profile) map[StepPart]units.Seconds {
		parts, err := NewPredictor(p).Alone(j)
		if err != nil {
			t.Fatal(err)
		}
		sum, whole := map[StepPart]units.Seconds{}, units.Seconds(0)
		for part, ops := range parts {
			for _, at := range ops {
				sum[part] += at
				whole += at
			}
		}
		if step := mustSimulate(t, p, j, aloneOf(j)).Time.Mid; math.Abs(float64(whole/step)-1) > 1e-9 {
			t.Errorf("the parts are %v together, the step is %v", whole, step)
		}
		return sum
	}
	alone := of(p)
	in := of(trainedOn(p, map[string]TrainingFact{"fast": {Layers: 2, Loss: 2, Optimizer: 5, Ratio: 1}}))
	for part, want := range map[StepPart]units.Seconds{StepForward: 2, StepLoss: 2, StepBackward: 2, StepOptimizer: 5} {
		if ratio := in[part] / alone[part]; math.Abs(float64(ratio/want)-1) > 1e-9 {
			t.Errorf("%s takes %v times as long, want %v", part, ratio, want)
		}
	}
	j.Cluster.Nodes[0].Devices[0].Count = 2
	if _, err := NewPredictor(p).Alone(j); err == nil {
		t.Error("a step of two devices is no device's alone")
	}
}

// TestRatiosAreOneDoubtOfADeviceType: an error of them moves all that the type computes, so that
// it is as large a part of the difference between two layouts of one type, and may be more than
// all of it where one of two types gets more to do.
func TestRatiosAreOneDoubtOfADeviceType(t *testing.T) {
	p := usual(t)
	against := func(devices string, less, more units.Tokens) (share float64, most string) {
		const all = 8192
		step := func(first units.Tokens) *Step {
			tokens := []units.Tokens{first, all - first}
			j := testJob(cluster(t, devices, p, "bus", "net"), tokens)
			return mustSimulate(t, p, j, ZigZag(tokens, Singles(tokens, j.Model.QHeads)))
		}
		a, b := step(less), step(more)
		half, most := GainError(a, b)
		return float64(half) / math.Abs(float64(b.Time.Mid-a.Time.Mid)), Settle(a, b, most)
	}
	const doubt = 1.3
	oneType, _ := against("1x2 fast", 4096, 5120)
	twoTypes, _ := against("1x(1 fast + 1 slow)", 5632, 6656)
	for _, device := range []string{"fast", "slow"} {
		p.Training = append(p.Training, TrainingFact{Device: device, Layers: 1, Loss: 1, Optimizer: 1, Ratio: doubt, Steps: 1})
	}
	if share, most := against("1x2 fast", 4096, 5120); share <= oneType || share > math.Hypot(oneType, doubt-1) {
		t.Errorf("one type: in doubt by %.2f of the difference, by %.2f without ratios (%s)", share, oneType, most)
	}
	share, settle := against("1x(1 fast + 1 slow)", 5632, 6656)
	if twoTypes > 0.7 || share < 1 {
		t.Errorf("two types: in doubt by %.2f of the difference, by %.2f without ratios", share, twoTypes)
	}
	if want := "; to settle it, calibrate one fast, train a few steps on it (python/examples/train_step.py), and evenkeel fit --training"; settle != want {
		t.Errorf("%q, want %q", settle, want)
	}
}

// TestOnlyMeasuredRatiosAreLent, and those of a GPU to GPUs: what is assumed of one device type
// says nothing of another, nor do GPUs of processors.
func TestOnlyMeasuredRatiosAreLent(t *testing.T) {
	p := world(t, rand.New(rand.NewPCG(5, 95)), faster{})
	measured := TrainingFact{Device: "fast", Layers: 2, Loss: 2, Optimizer: 2, Ratio: 1.02, Steps: 4}
	assumed := TrainingFact{Device: "fast", Layers: 8, Loss: 8, Optimizer: 8, Ratio: 1.2, Assumed: "whole steps of a GPU"}
	sheet := func(device string, s op.Sheet) {
		p.Devices[slices.IndexFunc(p.Devices, func(d op.DeviceType) bool { return d.Name == device })].Sheet = s
	}
	lent := func(f TrainingFact) (TrainingFact, bool) {
		p.Training = []TrainingFact{f}
		if err := p.validateTraining(); err != nil {
			t.Fatal(err)
		}
		q := NewPredictor(p)
		if own, ok := q.Training("fast"); !ok || own != f {
			t.Errorf("%+v of its own, want %+v", own, f)
		}
		return q.Training("slow")
	}
	if f, ok := lent(measured); !ok || f.Lent != "fast" || math.Abs(f.Layers-2) > 1e-12 {
		t.Errorf("between processors: %+v", f)
	}
	if f, ok := lent(assumed); ok {
		t.Errorf("what is assumed of another: %+v", f)
	}
	sheet("fast", op.Sheet{Arch: "sm90"})
	if f, ok := lent(measured); ok {
		t.Errorf("from a GPU to a processor: %+v", f)
	}
	sheet("slow", op.Sheet{Arch: "sm80"})
	if _, ok := lent(measured); !ok {
		t.Error("nothing is lent between GPUs")
	}
}

// TestRatiosOfElsewhereAreTransferred: however well the laws were measured.
func TestRatiosOfElsewhereAreTransferred(t *testing.T) {
	p := usual(t)
	for want, f := range map[Source]TrainingFact{Interpolated: {Steps: 1}, Transferred: {Assumed: "steps of a GPU"}} {
		f.Device, f.Layers, f.Loss, f.Optimizer, f.Ratio = "fast", 1, 1, 1, 1.1
		p.Training = []TrainingFact{f}
		got, err := NewPredictor(p).Time("fast", op.Norm{Rowwise: op.Rowwise{Tokens: 4096, Width: 256, DType: op.F32}})
		if err != nil || got.Source != want {
			t.Errorf("%+v: %v, %v", f, got.Source, err)
		}
	}
}

// TestWrongRatiosAreRefused: each names its field.
func TestWrongRatiosAreRefused(t *testing.T) {
	p := usual(t)
	for want, wrong := range map[string]TrainingFact{
		"training[0].steps: 0":            {Ratio: 1},
		"training[0].steps: -1":           {Ratio: 1, Steps: -1},
		"training[0].ratio: 0.5":          {Ratio: 0.5, Steps: 1},
		`training[0].assumed: "another"`:  {Ratio: 1, Steps: 2, Assumed: "another"},
		`training[0].assumed: "a" beside`: {Ratio: 1, Assumed: "a", From: doc.Input{Path: "steps.json"}},
	} {
		wrong.Device, wrong.Layers, wrong.Loss, wrong.Optimizer = "fast", 1, 1, 1
		p.Training = []TrainingFact{wrong}
		if err := p.validateTraining(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
