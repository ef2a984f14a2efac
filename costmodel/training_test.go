package costmodel

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

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
	if said := strings.Join(step.Warnings, "\n"); !strings.Contains(said, "a call on slow takes as long as in the 3 whole training steps measured on fast, for none was there (fit --training)") {
		t.Errorf("it does not say whose ratios it takes:\n%s", said)
	}
	if u := usualRatios([]TrainingFact{{Device: "a", Layers: 2, Loss: 1, Optimizer: 1, Ratio: 1.2, Steps: 1}, {Device: "b", Layers: 8, Loss: 1, Optimizer: 4, Ratio: 1, Steps: 2}}); math.Abs(u.Layers-4) > 1e-12 || math.Abs(u.Optimizer-2) > 1e-12 || u.Steps != 3 || u.Lent != "a, b" || u.Ratio <= 1.2 {
		t.Errorf("%+v", u)
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
	if want := "; to settle it, train a few steps on one fast: python3 python/examples/train_step.py, and evenkeel fit --training"; settle != want {
		t.Errorf("%q, want %q", settle, want)
	}
}

// TestMeasuredRatiosGoBeforeAssumedOnes: a device type that nothing is known of takes those of
// measured steps, and of assumed ones only where there are no others; what is assumed of a
// device type itself stays. All say so.
func TestMeasuredRatiosGoBeforeAssumedOnes(t *testing.T) {
	measured := TrainingFact{Device: "fast", Layers: 2, Loss: 2, Optimizer: 2, Ratio: 1.02, Steps: 4}
	assumed := TrainingFact{Device: "slow", Layers: 8, Loss: 8, Optimizer: 8, Ratio: 1.2, Assumed: "whole steps of a GPU"}
	if u := usualRatios([]TrainingFact{assumed, measured}); u.Layers != 2 || u.Lent != "fast" || u.Assumed != "" || u.Steps != 4 {
		t.Errorf("%+v", u)
	}
	u := usualRatios([]TrainingFact{assumed})
	if math.Abs(u.Layers-8) > 1e-12 || u.Lent != "slow" || u.Ratio <= 1.2 {
		t.Errorf("%+v", u)
	}
	if got, want := u.source(), "whole steps of a GPU, as assumed of slow"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := assumed.source(); got != assumed.Assumed {
		t.Errorf("%q, want %q", got, assumed.Assumed)
	}
	p := world(t, rand.New(rand.NewPCG(5, 95)), faster{})
	p.Training = []TrainingFact{assumed, measured}
	if err := p.validateTraining(); err != nil {
		t.Fatal(err)
	}
	for _, f := range p.inTraining().Training {
		if want := map[string]float64{"fast": 2, "slow": 8}[f.Device]; f.Layers != want {
			t.Errorf("%s takes %v times as long, want %v", f.Device, f.Layers, want)
		}
	}
	for _, wrong := range []TrainingFact{
		{Device: "fast", Layers: 1, Loss: 1, Optimizer: 1, Ratio: 1},
		{Device: "fast", Layers: 1, Loss: 1, Optimizer: 1, Ratio: 1, Steps: -1, Assumed: "of another"},
		{Device: "fast", Layers: 1, Loss: 1, Optimizer: 1, Ratio: 1, Steps: 2, Assumed: "of another"},
	} {
		p.Training = []TrainingFact{wrong}
		if err := p.validateTraining(); err == nil || !strings.Contains(err.Error(), "of at least one step or assumed without") {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}
