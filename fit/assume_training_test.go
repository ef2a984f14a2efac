package fit

import (
	"math"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/doc"
)

// trainedH100 are the whole steps of results/evidence/h100, as of the GPU that a profile has.
func trainedH100(t *testing.T, gpu string) *Training {
	t.Helper()
	var steps Training
	if err := doc.Load("../results/evidence/h100/training.json", &steps); err != nil {
		t.Fatal(err)
	}
	steps.GPU = gpu
	return &steps
}

// TestAssumedTrainingIsTheMeasuredOnes: what Assume takes a device type to train like are the
// ratios of the steps of an H100, over the laws of its own calls and of others' recordings.
func TestAssumedTrainingIsTheMeasuredOnes(t *testing.T) {
	for name, x := range map[string]struct {
		p                             *costmodel.Profile
		layers, loss, optimizer, wide float64
	}{
		"own calls": {anH100(t), layersInTraining, lossInTraining, optimizerInTraining, trainingError},
		"others'":   {embedded(t, "h100_sxm"), assumedLayersInTraining, assumedLossInTraining, assumedOptimizerInTraining, assumedTrainingError},
	} {
		if err := trainedH100(t, x.p.Devices[0].Model).Onto(x.p, doc.Input{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f := x.p.Training[0]
		for what, pair := range map[string][2]float64{
			"layers": {f.Layers, x.layers}, "loss": {f.Loss, x.loss}, "optimizer": {f.Optimizer, x.optimizer}, "interval": {f.Ratio, x.wide},
		} {
			if math.Abs(pair[0]-pair[1]) > 0.006 {
				t.Errorf("%s: %s is %v, and %v is assumed", name, what, pair[0], pair[1])
			}
		}
	}
}

// TestAssumeTakesATypeToTrainAsAnH100: by what its laws are of; never in place of measured
// steps, and of no device without a datasheet.
func TestAssumeTakesATypeToTrainAsAnH100(t *testing.T) {
	fact := func(p *costmodel.Profile) costmodel.TrainingFact {
		Assume(p)
		if len(p.Training) == 0 {
			return costmodel.TrainingFact{}
		}
		return p.Training[0]
	}
	engine := embedded(t, "a100_sxm")
	engine.Training = nil
	if f := fact(engine); f.Layers != assumedLayersInTraining || f.Loss != assumedLossInTraining || f.Optimizer != assumedOptimizerInTraining || f.Steps != 0 || f.Assumed == "" {
		t.Errorf("an engine's laws: %+v", f)
	}
	own := func() *costmodel.Profile {
		p := anH100(t)
		p.Training = nil
		return p
	}
	f := fact(own())
	if f.Layers != layersInTraining || f.Loss != lossInTraining || f.Optimizer != optimizerInTraining {
		t.Errorf("own calls: %+v", f)
	}
	if want := costmodel.CombineFactors(trainingError, costmodel.LentRatio); f.Ratio != want {
		t.Errorf("half width %v, want %v", f.Ratio, want)
	}
	if other := fact(measuredOnly("b60")); other.Ratio < aMaker || other.Layers != assumedLayersInTraining {
		t.Errorf("another maker's GPU: %+v", other)
	}
	few := own()
	few.Laws = slices.DeleteFunc(few.Laws, func(l costmodel.Law) bool { return l.Op == op.KindAdamW })
	if f := fact(few); f.Loss != lossInTraining || f.Optimizer != assumedOptimizerInTraining {
		t.Errorf("own calls but the optimizer's: %+v", f)
	}
	few.Training = nil
	before := len(few.Laws)
	if AssumeTraining(few); len(few.Training) != 1 || len(few.Laws) != before {
		t.Errorf("nothing but ratios: %+v, %d laws more", few.Training, len(few.Laws)-before)
	}
	measured := own()
	if err := trainedH100(t, "").Onto(measured, doc.Input{}); err != nil {
		t.Fatal(err)
	}
	if f := fact(measured); f.Steps != 9 || f.Assumed != "" || len(measured.Training) != 1 {
		t.Errorf("measured steps: %+v", measured.Training)
	}
	unknown := own()
	for i := range unknown.Devices {
		unknown.Devices[i].Sheet = op.Sheet{}
	}
	if Assume(unknown); len(unknown.Training) > 0 {
		t.Errorf("no datasheet, no GPU: %+v", unknown.Training)
	}
}

// TestStepsFindTheirDeviceByItsModel: what was planned for h100_sxm is of a reference's
// h100_sxm/trtllm, for fit and check alike; the document keeps its name.
func TestStepsFindTheirDeviceByItsModel(t *testing.T) {
	p, steps := embedded(t, "h100_sxm"), trainedH100(t, "")
	p.Training = nil
	if err := steps.Onto(p, doc.Input{SHA256: "of these"}); err != nil {
		t.Fatal(err)
	}
	if len(p.Training) != 1 || costmodel.ModelOf(p.Training[0].Device) != "h100_sxm" || p.Training[0].Device == "h100_sxm" {
		t.Fatalf("%+v", p.Training)
	}
	r, err := steps.Check(p, "of these", (&Limits{}).Replayed())
	if err != nil || len(r.From) != 1 || !r.From[0].Own || r.From[0].Device != p.Training[0].Device || r.Inside < 8 {
		t.Errorf("%v: %+v", err, r)
	}
	steps.GPU = "NVIDIA H100 80GB HBM3"
	for model, right := range map[string]bool{"h100_sxm": true, "h200_sxm": false, "": false} {
		steps.Model = model
		_, err := steps.Check(p, "", (&Limits{}).Replayed())
		if onto := steps.Onto(p, doc.Input{}); (err == nil) != right || (onto == nil) != right {
			t.Errorf("of a GPU that is known as %q: check %v, fit %v", model, err, onto)
		}
	}
	if steps.Steps[0].Device() != "h100_sxm" {
		t.Errorf("the document says %q", steps.Steps[0].Device())
	}
}
