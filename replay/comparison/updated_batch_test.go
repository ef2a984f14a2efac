package comparison

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/replay"
)

// updatedParty plays whole steps of the usual party by a ZeRO stage, with a fifth rank that
// is left out.
func updatedParty(zero costmodel.ZeRO, overlap bool) party {
	p := usualParty()
	p.change = func(h *replay.Header) {
		h.Parts, h.LossChunk = replay.PartsStep, 64
		x, n := &h.Plans[0], &h.Numerics[0]
		x.Zero, x.OverlapZero, x.LeftOut = zero, overlap, []int{4}
		h.Ranks = append(h.Ranks, replay.Rank{Rank: 4, Host: "h", Device: "slow", Threads: 1, Python: "3.11.2", Torch: "2.1.0"})
		model := *x.Model
		model.Layers = h.Layers
		kind := op.KindReduceScatter
		if zero == costmodel.Zero0 {
			kind = op.KindAllReduce
		}
		n.Loss = &replay.LossNumerics{DX: 1e-7, DW: 1e-7, Limit: 1e-5, Rows: 12}
		n.Exchange = &replay.ExchangeNumerics{Sum: 1e-7, Limit: 1e-5, DType: op.F32, Kind: kind}
		n.Update = &replay.UpdateNumerics{Params: 1e-6, Limit: 1e-3, Parameters: model.Params()}
	}
	return p
}

// A whole step of a batch that runs as the profile says has no error anywhere.
func TestUpdatedBatchUndisturbed(t *testing.T) {
	for _, zero := range []costmodel.ZeRO{costmodel.Zero0, costmodel.Zero1, costmodel.Zero2, costmodel.Zero3} {
		for _, overlap := range []bool{false, true} {
			p := updatedParty(zero, overlap)
			x := p.compared(t)
			if math.Abs(x.Log) > 1e-5 || x.ComputeError > 1e-3 || !x.Inside || x.Micro != 3 || len(x.Critical) != 1 || !x.Batch {
				t.Errorf("%s: error %v, of computing %v; %+v", zero, x.Log, x.ComputeError, x)
			}
			for _, part := range x.Parts {
				if math.Abs(float64(part.Difference)) > 1e-5*float64(x.Measured.Median) {
					t.Errorf("%s: %+v of %v", zero, part, x.Measured.Median)
				}
			}
			for _, o := range []costmodel.ReplayOp{costmodel.GradWait, costmodel.MeetOp} {
				i := slices.IndexFunc(x.Classes, func(c Class) bool { return c.Op == o })
				if i < 0 || x.Classes[i].Predicted <= 0 || x.Classes[i].MeanError > 1e-2 {
					t.Errorf("%s, %s: %+v", zero, o, x.Classes)
				}
			}
			for _, r := range x.Ranks {
				if off := float64(x.Measured.Median); math.Abs(float64(r.Measured-r.Predicted)) > 1e-5*off && r.Rank != 4 || math.Abs(float64(r.Waited-r.Waits)) > 1e-4*off || (r.Computes == 0) != (r.Rank == 4) {
					t.Errorf("%s: %+v", zero, r)
				}
			}
		}
	}
}

// Where a rank computes more slowly in one micro-batch, the difference is computing or waiting
// for it, and no gap; what gradients take on slower links is communication.
func TestUpdatedBatchSaysWhereTimeWent(t *testing.T) {
	p := updatedParty(costmodel.Zero1, false)
	p.slower = func(k costmodel.ReplayKey) float64 {
		if k.Rank == 1 && k.Micro == 1 && k.Op != costmodel.OptimizerOp {
			return 3
		}
		return 1
	}
	x := p.compared(t)
	if x.Difference <= 0 || math.Abs(share(x, GapsPart)) > 1e-3 || math.Abs(share(x, CommunicationPart)) > 1e-2 {
		t.Errorf("%v: %+v", x.Difference, x.Parts)
	}
	p = updatedParty(costmodel.Zero1, false)
	p.rate = linkRate / 8
	if x := p.compared(t); x.Difference <= 0 || share(x, CommunicationPart) < 0.9 || x.ComputeError > 1e-3 {
		t.Errorf("slow links: %v: %+v", x.Difference, x.Parts)
	}
}

// A rank's ring is that of its group in the micro-batch, and its FLOPs are of all of them.
func TestUpdatedBatchIsOfAllMicroBatches(t *testing.T) {
	p, profile := updatedParty(costmodel.Zero0, true), madeUp(t, linkRate)
	h := p.header()
	c := &making{rec: &Recording{Header: h}, profile: profile, predictor: costmodel.NewPredictor(profile)}
	x, err := c.courseOf(0)
	if err != nil {
		t.Fatal(err)
	}
	whole := x.micro[0].of[0]
	for at, want := range map[[2]int]int{{0, 0}: 4, {3, 0}: 4, {0, 1}: 1, {3, 1}: 1, {2, 2}: 2, {4, 2}: 1} {
		if got := whole.rings(at[0], at[1]); got != want {
			t.Errorf("rank %d in micro-batch %d: %d rings, want %d", at[0], at[1], got, want)
		}
	}
	want := map[int]int64{}
	place, err := c.place(&h.Plans[0])
	if err != nil {
		t.Fatal(err)
	}
	for m := range h.Plans[0].Groups {
		for i := range h.Plans[0].Groups[m] {
			g, err := c.group(&h.Plans[0], &h.Plans[0].Groups[m][i], place)
			if err != nil {
				t.Fatal(err)
			}
			for r, n := range g.counts {
				want[r] += n
			}
		}
	}
	if len(want) != 4 {
		t.Fatal(want)
	}
	for r, n := range want {
		if whole.counts[r] != n {
			t.Errorf("rank %d: %d FLOPs, its groups have %d", r, whole.counts[r], n)
		}
	}
}

// Ranks without a message between them but gradients need a link, and what differs from a
// plan's price is said.
func TestUpdatedBatchOfRanksAlone(t *testing.T) {
	p := updatedParty(costmodel.Zero3, true)
	p.groups = [][]replay.GroupRun{{alone(0, 200), alone(1, 100, 30)}, {alone(2, 90)}}
	r, err := New(read(t, p.play(t)), madeUp(t, linkRate), fit.DefaultLimits(), Links{})
	if err != nil {
		t.Fatal(err)
	}
	if x := &r.Plans[0]; math.Abs(x.Log) > 1e-5 || x.Ranks[3].Waits <= 0 {
		t.Errorf("%+v", x)
	}
	all := strings.Join(r.Warnings, "\n")
	for _, want := range []string{"groups side by side are predicted as if each were alone", "gathered once in a micro-batch of zero3", "adding a micro-batch's gradients to those before it", "looking tokens up"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in %s", want, all)
		}
	}
	if r.Plans[0].Meeting <= 0 {
		t.Error(r.Plans[0].Meeting)
	}
}
