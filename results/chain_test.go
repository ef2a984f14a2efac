package results

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/profile"
	"github.com/evenkeel/evenkeel/profile/backend/sim"
	"github.com/evenkeel/evenkeel/solver"
)

// journal keeps a recording in memory.
type journal struct{ bytes.Buffer }

func (j *journal) Append(line any) error {
	data, err := json.Marshal(line)
	j.Write(append(data, '\n'))
	return err
}

// TestChain renders what the tool itself makes, not what a test wrote down: a
// simulated cluster is calibrated, fitted, checked and planned for.
func TestChain(t *testing.T) {
	cfg, err := sim.Parse("1xbig+1xsmall,noise=0.02,seed=3")
	if err != nil {
		t.Fatal(err)
	}
	var rec journal
	past, _ := profile.NewPast()
	err = profile.Calibrate(context.Background(), sim.New(cfg), profile.Config{Tool: "test", Budget: time.Minute, Seed: 3, PointTimeout: time.Minute, Wall: time.Now}, past, &rec, func(profile.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	data := fit.NewData()
	if err := data.Add("sim.rec.jsonl", bytes.NewReader(rec.Bytes())); err != nil {
		t.Fatal(err)
	}
	p, err := fit.Fit(data, fit.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	report, err := fit.Check(p, data, data.Held(p.Holdout.Seed, p.Holdout.Share), fit.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	summary, err := Summarise("sim.rec.jsonl", bytes.NewReader(rec.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, err := range []error{Profile(&out, p), Coefficients(&out, p), Report(&out, report), Recording(&out, summary), Plan(&out, planFor(t, p)), Explain(&out, planFor(t, p))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range strings.Split(out.String(), "\n") {
		if len(line) > Width || strings.Contains(line, "NaN") || strings.Contains(line, "Inf") {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	if dir := os.Getenv("EVENKEEL_PLOTS"); dir != "" {
		for name, f := range figures(t, report) {
			var buf bytes.Buffer
			if err := WritePNG(&buf, f); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "chain_"+name+".png"), buf.Bytes(), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		t.Log(out.String())
	}
}

// planFor plans a step that fits the simulated devices, in their precision.
func planFor(t *testing.T, p *costmodel.Profile) *solver.Plan {
	t.Helper()
	dtype, headDim := op.F32, 64
	for _, l := range p.Laws {
		if l.Op == op.KindAttnFwd {
			dtype, headDim = l.Variant.DType, l.Variant.HeadDim
		}
	}
	var cluster costmodel.Cluster
	node := costmodel.Node{Name: "n0"}
	for _, d := range p.Devices {
		node.Devices = append(node.Devices, op.Member{Device: d.Name, Count: 1})
	}
	cluster.Nodes = append(cluster.Nodes, node)
	cluster, err := cluster.Resolve(p, "", "")
	if err != nil {
		t.Fatal(err)
	}
	problem, err := solver.NewProblem(p, costmodel.Job{
		Model:   costmodel.Model{Name: "llama", Layers: 4, Hidden: 8 * headDim, FFN: 1408, QHeads: 8, KVHeads: 4, HeadDim: headDim, Vocab: 32000, GatedMLP: true},
		Cluster: cluster, SeqLen: 8192, DType: dtype, Recompute: costmodel.RecomputeFull, RingBuffers: 2, LossChunk: 1024,
	})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := solver.Solve(context.Background(), problem, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}
