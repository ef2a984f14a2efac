package multitask

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
)

// published is a problem of modules with curves on n equal devices.
func published(t testing.TB, tasks *multitask.Tasks, n int) *Problem {
	t.Helper()
	if err := tasks.Validate(); err != nil {
		t.Fatal(err)
	}
	c, err := multitask.Published(tasks, costmodel.Cluster{Nodes: []costmodel.Node{{Name: "n", Devices: []op.Member{{Device: "any", Count: n}}}}})
	if err != nil {
		t.Fatal(err)
	}
	return &Problem{Costs: c}
}

// anchors are eight modules of four tasks: the instance that the reference to Spindle
// gives in full, to four decimals of a millisecond.
func anchors() *multitask.Tasks {
	t := &multitask.Tasks{Name: "anchors"}
	for i, r := range [][5]float64{ // layers, batch, by sample, fixed, exchange
		{24, 64, 0.0305, 0.6565, 0.0620},
		{12, 64, 0.0217, 0.7945, 0.1158},
		{12, 32, 0.1684, 0.6242, 0.3119},
		{12, 32, 0.0584, 1.1487, 0.0103},
		{24, 128, 0.0442, 0.5789, 0.2508},
		{24, 128, 0.0285, 0.8453, 0.2687},
		{12, 64, 0.0551, 0.5520, 0.3778},
		{24, 64, 0.0206, 0.5627, 0.2820},
	} {
		t.Modules = append(t.Modules, multitask.Module{
			Name: fmt.Sprint("m", i+1), Task: fmt.Sprint("t", i/2+1), Layers: int(r[0]), Batch: int(r[1]),
			Curve: &multitask.Curve{PerSample: units.Seconds(r[2]), Fixed: units.Seconds(r[3]), Sync: units.Seconds(r[4])},
		})
	}
	return t
}

// drawn are modules with curves, up to so many, some of which need others.
func drawn(r *rand.Rand, most int) *multitask.Tasks {
	t := &multitask.Tasks{Name: "drawn"}
	for i := range 1 + r.IntN(most) {
		m := multitask.Module{
			Name: fmt.Sprint("m", i), Task: fmt.Sprint("t", i/2), Layers: 1 + r.IntN(12), Batch: 1 + r.IntN(40),
			Curve: &multitask.Curve{PerSample: units.Seconds(0.02 * math.Pow(60, r.Float64())), Fixed: units.Seconds(r.Float64()), Sync: units.Seconds(0.4 * r.Float64())},
		}
		for j := range i {
			if r.IntN(3*i) == 0 {
				m.After = append(m.After, fmt.Sprint("m", j))
			}
		}
		t.Modules = append(t.Modules, m)
	}
	return t
}

// encoders are small encoders of two tasks and a decoder that needs one of them.
func encoders() *multitask.Tasks {
	shape := func(seq units.Tokens, hidden int) *multitask.Shape {
		return &multitask.Shape{SeqLen: seq, Hidden: hidden, FFN: 4 * hidden, QHeads: hidden / 64}
	}
	decoder := &multitask.Shape{SeqLen: 512, Hidden: 2048, FFN: 5632, QHeads: 16, KVHeads: 8, HeadDim: 128, Causal: true, GatedMLP: true}
	return &multitask.Tasks{Name: "encoders", Modules: []multitask.Module{
		{Name: "vision", Task: "describe", Layers: 24, Batch: 64, Shape: shape(256, 1024)},
		{Name: "words", Task: "describe", Layers: 16, Batch: 64, After: []string{"vision"}, Shape: decoder},
		{Name: "audio", Task: "hear", Layers: 12, Batch: 48, Shape: shape(229, 768)},
		{Name: "text", Task: "hear", Layers: 12, Batch: 48, Shape: shape(77, 512)},
	}}
}

// byLaws is a problem on real GPUs, by the reference laws.
func byLaws(t testing.TB, tasks *multitask.Tasks, cluster string) *Problem {
	t.Helper()
	profile, job := reference.Job(t, reference.Llama(1), cluster, 1024)
	c, err := multitask.FromLaws(costmodel.NewPredictor(profile), tasks, job.Cluster, multitask.Options{DType: job.DType})
	if err != nil {
		t.Fatal(err)
	}
	return &Problem{Costs: c}
}
