package multitask

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// mustReplay predicts a replay of a plan, and checks what holds of any.
func mustReplay(t rapid.TB, c *Costs, p *Plan, took func(costmodel.ReplayKey) (units.Seconds, bool)) *costmodel.Replayed {
	t.Helper()
	r, err := c.Replayed(p, took)
	if err != nil {
		t.Fatalf("%v of %+v", err, p)
	}
	ends, compute, seen := make([]units.Seconds, c.Devices()), make([]units.Seconds, c.Devices()), map[costmodel.ReplayKey]bool{}
	for i, k := range r.Tasks {
		if seen[k.ReplayKey] || !close(k.Start, ends[k.Rank]) || k.Time < 0 || i > 0 && r.Tasks[i-1].Rank > k.Rank {
			t.Fatalf("task %d, %+v: there before, or does not follow on %v", i, k, ends[k.Rank])
		}
		if seen[k.ReplayKey], ends[k.Rank] = true, k.Start+k.Time; !k.Op.Waits() {
			compute[k.Rank] += k.Time
		} else if k.Time == 0 {
			t.Errorf("%+v: takes no time", k)
		}
	}
	for rank, sum := range r.Ranks {
		if !close(sum.Compute+sum.Exposed+sum.Skew, sum.End) || !close(sum.Compute, compute[rank]) || !close(sum.End, ends[rank]) || sum.Exposed < 0 {
			t.Errorf("rank %d: %+v, its tasks compute for %v until %v", rank, sum, compute[rank], ends[rank])
		}
	}
	if r.Step.Mid != slices.Max(ends) || !(r.Step.Lo < r.Step.Mid && r.Step.Mid < r.Step.Hi) || r.Step.Source != costmodel.Interpolated {
		t.Errorf("%+v; the last rank is done at %v", r.Step, slices.Max(ends))
	}
	q := p.Clone()
	if err := c.Simulate(q); err != nil || r.Meeting != q.Time {
		t.Errorf("meeting %v, simulated %v; %v", r.Meeting, q.Time, err)
	}
	return r
}

// waits are a rank's stretches of waiting.
func waits(r *costmodel.Replayed, rank int) (all []costmodel.ReplayTask) {
	for _, k := range r.Tasks {
		if k.Rank == rank && k.Op.Waits() {
			all = append(all, k)
		}
	}
	return all
}

// One device takes its passes one after the other: forward in the plan's order and backward in
// the other, with the forward pass once more where it is recomputed.
func TestAReplayOnOneDeviceIsTheSumOfItsParts(t *testing.T) {
	for _, full := range []bool{false, true} {
		w := proportional(t, [][]string{{"a"}}, module("m", 3, 4), module("n", 1, 2, "m"))
		w.full = full
		p := &Plan{Runs: []Run{
			{Layers: 2, Ranks: []int{0}, Samples: []int{4}},
			{Layers: 1, Ranks: []int{0}, Samples: []int{4}},
			{Module: 1, Layers: 1, Ranks: []int{0}, Samples: []int{2}},
		}}
		r := mustReplay(t, w.costs(t), p, nil)
		// A sample of a layer takes 1 s, a third of it forward, and another where that is run again.
		most := units.Seconds(14 * (1.1 + 2*1.3) / 3)
		if full {
			most = 14 * (2*1.1 + 1.3) / 3
		}
		if !close(r.Step.Mid, 3*4+2) || r.Ranks[0].Exposed != 0 || len(waits(r, 0)) != 0 || !close(r.Step.Lo, 0.9*14) || !close(r.Step.Hi, most) {
			t.Errorf("%+v, %+v", r.Step, r.Ranks[0])
		}
		type stretch struct {
			run, layer int
			dir        string
			again      bool
			op         costmodel.ReplayOp
		}
		var got, want []stretch
		for _, k := range r.Tasks {
			got = append(got, stretch{k.Micro, k.Layer, k.Dir, k.Again, k.Op})
		}
		forward := []costmodel.ReplayOp{costmodel.LinearIn, costmodel.AttentionOp, costmodel.LinearOut}
		at := [][2]int{{0, 0}, {0, 1}, {1, 2}, {2, 0}}
		for _, x := range at {
			for _, o := range forward {
				want = append(want, stretch{x[0], x[1], "fwd", false, o})
			}
		}
		for _, x := range slices.Backward(at) {
			for _, o := range forward {
				if full {
					want = append(want, stretch{x[0], x[1], "fwd", true, o})
				}
			}
			for _, o := range slices.Backward(forward) {
				want = append(want, stretch{x[0], x[1], "bwd", false, o})
			}
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(stretch{})); diff != "" {
			t.Errorf("recomputed %v (-want +got)\n%s", full, diff)
		}
	}
}

// Two equal devices with equal shares run side by side. A layer of four samples each takes 4/3
// s forward and 8/3 s backward; its exchange hides behind the next backward pass if it is
// shorter than that, and only the first layer's stays open.
func TestExchangesHideBehindBackwardPasses(t *testing.T) {
	for _, x := range []struct{ exchange, open units.Seconds }{
		{0, 0}, {1, 1}, {8. / 3, 8. / 3}, {5, 4*5 - 3*8./3}, {30, 4*30 - 3*8./3},
	} {
		w := proportional(t, [][]string{{"a", "a"}}, module("m", 4, 8))
		w.gradients[0] = x.exchange
		for _, layers := range [][]int{{4}, {3, 1}, {1, 1, 2}} { // exchanges go on across runs of the same ranks
			p := &Plan{}
			for _, n := range layers {
				p.Runs = append(p.Runs, Run{Layers: n, Ranks: []int{0, 1}, Samples: []int{4, 4}})
			}
			r := mustReplay(t, w.costs(t), p, nil)
			for rank := range 2 {
				sum, of := r.Ranks[rank], waits(r, rank)
				if !close(sum.Compute, 16) || !close(sum.Exposed, x.open) || sum.Skew > 1e-9 || !close(sum.End, 16+x.open) {
					t.Errorf("%v s in %v: %+v, want %v open", x.exchange, layers, sum, x.open)
				}
				var total units.Seconds
				for _, k := range of {
					if total += k.Time; k.Op != costmodel.GradWait || k.Dir != costmodel.BackwardPass {
						t.Errorf("%+v", k)
					}
				}
				if !close(total, x.open) {
					t.Errorf("%v s in %v: %+v", x.exchange, layers, of)
				}
				if n := len(of); n > 0 && (of[n-1].Micro != 0 || of[n-1].Layer != 0) {
					t.Errorf("%v s in %v: the last to be waited for is %+v", x.exchange, layers, of[n-1])
				}
				if x.exchange == 30 && (len(of) != len(layers) || of[0].Micro != len(layers)-1 || of[0].Layer != 4-layers[len(layers)-1]) {
					t.Errorf("%v s in %v: %+v", x.exchange, layers, of)
				}
			}
		}
	}
}

// The faster of two devices waits for the gradients of the slower one, which is skew, and then
// both for the exchange. Other ranks' exchanges do not hold one up.
func TestGradientsOfTheSlowerRankAreSkew(t *testing.T) {
	w := proportional(t, [][]string{{"a", "b"}}, module("m", 2, 2), module("n", 1, 1))
	w.gradients[0] = 0.25
	// Forward a takes 1/3 s a layer and b 2/3, backward 2/3 and 4/3.
	r := mustReplay(t, w.costs(t), &Plan{Runs: []Run{{Layers: 2, Ranks: []int{0, 1}, Samples: []int{1, 1}}, {Module: 1, Layers: 1, Ranks: []int{0}, Samples: []int{1}}}}, nil)
	want := []costmodel.ReplayedRank{{Compute: 3, Exposed: 0.25, Skew: 1, End: 4.25}, {Compute: 4, Exposed: 0.25, End: 4.25}}
	for rank, sum := range r.Ranks {
		if d := want[rank]; !close(sum.Compute, d.Compute) || !close(sum.Exposed, d.Exposed) || math.Abs(float64(sum.Skew-d.Skew)) > 1e-12 || !close(sum.End, d.End) {
			t.Errorf("rank %d: %+v, want %+v", rank, sum, d)
		}
	}
	// The interval is in proportion to that of what a rank computes.
	if !close(r.Step.Hi, 4.25*(1.1+2*1.3)/3) {
		t.Errorf("%+v", r.Step)
	}
}

// A chain of two modules on two devices: the first one's forward pass, the way there, both
// passes of the second, the way back, the first one's backward pass.
func TestAChainOnTwoDevices(t *testing.T) {
	w := proportional(t, [][]string{{"a", "b"}}, module("m", 2, 3), module("n", 1, 3, "m"))
	w.bytes[0], w.bytes[1] = 1e9, 1e9 // made prices: twice as many leave a module; 2 ns a byte with b
	p := &Plan{Runs: []Run{{Layers: 2, Ranks: []int{0}, Samples: []int{3}}, {Module: 1, Layers: 1, Ranks: []int{1}, Samples: []int{3}}}}
	r := mustReplay(t, w.costs(t), p, nil)
	const send = 3 * 2 * 2
	if !close(r.Step.Mid, 2*3+2*send+6) || !close(r.Meeting, r.Step.Mid) {
		t.Errorf("%+v, meeting %v", r.Step, r.Meeting)
	}
	key := func(rank, run, layer int, dir string) costmodel.ReplayKey {
		return costmodel.ReplayKey{Rank: rank, Micro: run, Layer: layer, Dir: dir, Op: costmodel.StageWait}
	}
	for rank, want := range [][]costmodel.ReplayTask{
		{{ReplayKey: key(0, 0, 1, "bwd"), Start: 2, Time: 2*send + 6}}, {{ReplayKey: key(1, 1, 0, "fwd"), Time: 2 + send}},
	} {
		got := waits(r, rank)
		if len(got) != 1 || got[0].ReplayKey != want[0].ReplayKey || !close(got[0].Start, want[0].Start) || !close(got[0].Time, want[0].Time) {
			t.Errorf("%+v, want %+v", got, want)
		}
		if sum := r.Ranks[rank]; !close(sum.Exposed, send) {
			t.Errorf("%+v: of a wait the message is exposed", sum)
		}
	}
}

// A device sends and takes in one message at a time. Of six samples each takes a second from
// one device to another, and layers no time.
func TestPortsTakeOneMessageAtATime(t *testing.T) {
	run := func(ranks, samples []int) Run { return Run{Layers: 1, Ranks: ranks, Samples: samples} }
	all := []int{0, 1, 2}
	for name, x := range map[string]struct {
		plan          []Run
		forward, both units.Seconds
	}{
		// To rank 1 until 3 s, to rank 2 until 6 s; back from rank 1 until 6 s, from rank 2 until 9 s.
		"one to two": {[]Run{run(all[:1], []int{6}), run(all[1:], []int{3, 3})}, 6, 9},
		// One after the other; and back too, for rank 0 is one port.
		"two to one": {[]Run{run(all[1:], []int{3, 3}), run(all[:1], []int{6})}, 6, 12},
		// A sample from 1 to 0, while two go from 2 to 1; back from 0 until 2 s, from 1 until 4 s.
		"shifted":                {[]Run{run(all, []int{2, 2, 2}), run(all[:2], []int{3, 3})}, 2, 4},
		"what stays does not go": {[]Run{run(all[:2], []int{4, 2}), run(all[:2], []int{3, 3})}, 1, 2},
		"there and back":         {[]Run{run(all[:1], []int{6}), run(all[1:2], []int{6}), run(all[:1], []int{6})}, 12, 24},
	} {
		w := proportional(t, [][]string{{"a", "a", "a"}}, module("m", len(x.plan), 6))
		w.bytes[0] = 1e9
		r := mustReplay(t, w.costs(t), &Plan{Runs: x.plan}, func(costmodel.ReplayKey) (units.Seconds, bool) { return 0, true })
		forward := units.Seconds(0)
		for _, k := range r.Tasks {
			if k.Dir == costmodel.ForwardPass {
				forward = max(forward, k.Start+k.Time)
			}
		}
		if !close(forward, x.forward) || !close(r.Step.Mid, x.both) {
			t.Errorf("%s: forward %v, both %v; want %v and %v", name, forward, r.Step.Mid, x.forward, x.both)
		}
	}
}

// Where there is nothing to exchange or move, no replay takes longer than the plan's simulation,
// in which the ranks of a run wait for one another; and as long where each run is on one device,
// or all are on all of equal ones in equal shares.
func TestReplayedAgreesWithSimulate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		devices := 0
		for _, node := range w.nodes {
			devices += len(node)
		}
		for m := range w.tasks.Modules {
			w.gradients[m], w.bytes[m] = 0, 0
		}
		p, how := drawPlan(t, w), rapid.SampledFrom([]string{"any", "one", "all"}).Draw(t, "how")
		if how == "all" {
			for m := range w.tasks.Modules {
				w.times[m][1] = w.times[m][0]
			}
		}
		p.Waves = p.Waves && how == "any"
		for i := range p.Runs {
			r := &p.Runs[i]
			if !p.Waves {
				r.Wave = 0
			}
			switch batch := w.tasks.Modules[r.Module].Batch; {
			case how == "one":
				r.Ranks, r.Samples = r.Ranks[:1], []int{batch}
			case how == "all" && batch%devices == 0:
				r.Ranks, r.Samples = nil, nil
				for rank := range devices {
					r.Ranks, r.Samples = append(r.Ranks, rank), append(r.Samples, batch/devices)
				}
			case how == "all":
				how = "any"
			}
		}
		r := mustReplay(t, w.costs(t), p, nil)
		if r.Step.Mid > r.Meeting*(1+1e-9) || how != "any" && !close(r.Step.Mid, r.Meeting) {
			t.Errorf("%s: %v, simulated %v", how, r.Step.Mid, r.Meeting)
		}
	})
}
