package costmodel

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// stepOf is a step that rests on so much of each law, by device type; the first type's is
// all of its time.
func stepOf(types ...map[*Law]Estimate) *Step {
	var sides []side
	var mid units.Seconds
	for i, laws := range types {
		var sum units.Seconds
		for _, e := range laws {
			sum += e.Mid
		}
		if i == 0 {
			mid = sum
		}
		sides = append(sides, side{laws, mid - sum})
	}
	return &Step{Time: interval(mid, Interpolated, sides), sides: sides}
}

// TestGainErrorIsOfTheNearerSide: what makes a difference greater is no reason to
// doubt it.
func TestGainErrorIsOfTheNearerSide(t *testing.T) {
	x, y := &Law{Op: op.KindSendRecv, Group: "x"}, &Law{Op: op.KindGEMM, Device: "y"}
	e := func(lo, mid, hi units.Seconds) Estimate { return Estimate{Lo: lo, Mid: mid, Hi: hi} }
	for name, tc := range map[string]struct {
		a, b map[*Law]Estimate
		want float64
		most string
	}{
		"the slower one has more of it": {map[*Law]Estimate{x: e(4, 6, 18)}, map[*Law]Estimate{x: e(2, 3, 9)}, 1, "send_recv on x"},
		"only the slower one has it":    {map[*Law]Estimate{x: e(1, 6, 20)}, map[*Law]Estimate{y: e(1, 1, 1)}, 5, "send_recv on x"},
		"only the faster one has it":    {map[*Law]Estimate{y: e(8, 8, 8)}, map[*Law]Estimate{x: e(1, 2, 9)}, 7, "send_recv on x"},
		"the faster one has more of it": {map[*Law]Estimate{y: e(8, 8, 8), x: e(1, 2, 4)}, map[*Law]Estimate{x: e(2, 4, 8)}, 2, "send_recv on x"},
		"both alike":                    {map[*Law]Estimate{x: e(1, 2, 9), y: e(4, 5, 6)}, map[*Law]Estimate{x: e(1, 2, 9), y: e(4, 5, 6)}, 0, ""},
		"two laws":                      {map[*Law]Estimate{x: e(3, 6, 18)}, map[*Law]Estimate{y: e(1, 2, 6)}, 5, "gemm on y"},
	} {
		for _, ab := range [][2]*Step{{stepOf(tc.a), stepOf(tc.b)}, {stepOf(tc.b), stepOf(tc.a)}} { // a loss is a gain of the other
			if half, most := GainError(ab[0], ab[1]); !near(half, units.Seconds(tc.want), 1e-12) || most != tc.most {
				t.Errorf("%s: %v by %q, want %v by %q", name, float64(half), most, tc.want, tc.most)
			}
		}
	}
}

// TestGainErrorIsOfEveryDeviceType: a law that is too fast slows a step down though the
// ranks it is about are not those that idle least, and one that is too slow speeds it up by
// no more than the others have to spare.
func TestGainErrorIsOfEveryDeviceType(t *testing.T) {
	x, y := &Law{Op: op.KindGEMM, Device: "x"}, &Law{Op: op.KindGEMM, Device: "y"}
	uses := func(l *Law, lo, mid, hi units.Seconds) map[*Law]Estimate {
		return map[*Law]Estimate{l: {Lo: lo, Mid: mid, Hi: hi}}
	}
	alone := stepOf(uses(x, 18, 20, 24))
	shared := stepOf(uses(x, 9, 10, 12), uses(y, 6, 9, 15)) // y is done a second sooner and may take 6 more
	if got := shared.Time; got.Lo != 9 || !near(got.Hi, units.Seconds(10+math.Hypot(2, 5)), 1e-12) {
		t.Errorf("%+v, want 9 to 15.39", got)
	}
	// Were x as fast as it may be, the step of x alone would gain 2 and the shared one 1, all
	// that x has there.
	half, most := GainError(alone, shared)
	if !near(half, units.Seconds(math.Hypot(1, 5)), 1e-12) || most != "gemm on y" {
		t.Errorf("%v by %q, want 5.10 by gemm on y", float64(half), most)
	}
	// And where y has nothing to spare, nothing.
	shared = stepOf(uses(x, 9, 10, 12), uses(y, 10, 10, 10))
	if half, most = GainError(alone, shared); !near(half, 2, 1e-12) || most != "gemm on x" {
		t.Errorf("%v by %q, want 2 by gemm on x", float64(half), most)
	}
	same := stepOf(uses(x, 18, 20, 24), uses(y, 6, 9, 15))
	if half, most = GainError(alone, same); half != 0 {
		t.Errorf("%v by %q of steps that end with the same law", float64(half), most)
	}
}

// TestStepsReachUpForEveryDeviceType: by what the step takes longer where that type's ranks
// are the slower ones, which a law as slow as that shows when it is simulated.
func TestStepsReachUpForEveryDeviceType(t *testing.T) {
	made := func() *Profile {
		p := madeUp(t, map[string]speeds{"x": {attention: 1e12}, "y": {attention: 2e12}}, map[string]wire{"bus": {}})
		for i := range p.Laws {
			l := &p.Laws[i]
			if l.Spread = (Spread{1, 1}); l.Device == "y" && l.Op == op.KindAttnFwd {
				l.Spread.Hi = 1.5
			}
		}
		return p
	}
	for _, tc := range []struct {
		y       units.Tokens // x has 4096, half as fast
		idle    units.Seconds
		further float64 // what waiting in one pass, taken for waiting in the other, may hide
	}{{8160, 0.01, 0.05}, {7936, 0.05, 0.5}} {
		tokens := []units.Tokens{4096, tc.y}
		step := func(p *Profile) *Step {
			return mustSimulate(t, p, testJob(cluster(t, "1x(1 x + 1 y)", p, "", ""), tokens), ringOf(tokens))
		}
		s, far := step(made()), 0.0
		if idle := s.Ranks[1].Idle / s.Time.Mid; idle <= 0 || idle > tc.idle || s.Time.Lo != s.Time.Mid {
			t.Fatalf("ranks %+v, time %+v: want x as the slower one", s.Ranks, s.Time)
		}
		for _, mask := range []op.Mask{op.Full, op.Diag} { // whose laws err independently
			p := made()
			for i := range p.Laws {
				if l := &p.Laws[i]; l.Device == "y" && l.Op == op.KindAttnFwd && l.Variant.Mask == mask {
					l.Linear.PerFLOP.Value *= 1.5
				}
			}
			far = math.Hypot(far, float64(step(p).Time.Mid-s.Time.Mid))
		}
		if got := float64(s.Time.Hi - s.Time.Mid); got == 0 || got > far*1.001 || got < far*(1-tc.further) {
			t.Errorf("%d tokens: reaches up by %v, want %v, as steps with laws as slow as that do", int64(tc.y), got, far)
		}
	}
}

// TestStepsWhoseIntervalsDoNotMeetDiffer: whatever the laws, and however much of them
// both use.
func TestStepsWhoseIntervalsDoNotMeetDiffer(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		draw := func(name string) float64 { return rapid.Float64Range(0.1, 10).Draw(r, name) }
		var laws []*Law
		var lo, hi []float64
		for range rapid.IntRange(1, 6).Draw(r, "laws") {
			laws = append(laws, &Law{Device: rapid.StringN(1, 8, -1).Draw(r, "device")})
			lo, hi = append(lo, draw("lo")), append(hi, draw("hi"))
		}
		step := func(scale float64) *Step {
			types := make([]map[*Law]Estimate, rapid.IntRange(1, 3).Draw(r, "types"))
			sum := func(of map[*Law]Estimate) (mid units.Seconds) {
				for _, e := range of {
					mid += e.Mid
				}
				return mid
			}
			for k := range types {
				types[k] = map[*Law]Estimate{}
				for i, l := range laws {
					if rapid.Bool().Draw(r, "uses") {
						mid := draw("mid") * scale
						types[k][l] = Estimate{Lo: units.Seconds(mid / (1 + lo[i])), Mid: units.Seconds(mid), Hi: units.Seconds(mid * (1 + hi[i]))}
					}
				}
			}
			slices.SortFunc(types, func(a, b map[*Law]Estimate) int { return cmp.Compare(sum(b), sum(a)) })
			return stepOf(types...)
		}
		faster, slower := step(1), step(10)
		half, _ := GainError(slower, faster)
		if slower.Time.Lo > faster.Time.Hi && half >= slower.Time.Mid-faster.Time.Mid {
			r.Fatalf("%v and %v differ by no more than %v", faster.Time, slower.Time, float64(half))
		}
	})
}

// TestBriefIsWhatStepSays: of time and doubts, on a simulator that has seen other layouts.
func TestBriefIsWhatStepSays(t *testing.T) {
	unlike := 0
	manyPlans(t, func(x plan, p *Profile, want *Step) {
		sim, err := NewSimulator(NewPredictor(p), x.job)
		if err != nil {
			t.Fatal(err)
		}
		even := make([]units.Tokens, len(x.layout.Shards))
		for r := range even {
			even[r] = x.job.SeqLen / units.Tokens(len(even))
		}
		even[0] += x.job.SeqLen % units.Tokens(len(even))
		ring := ZigZag(even, Singles(even, x.job.Model.QHeads))
		if _, err := sim.Time(ring); err != nil {
			t.Fatal(err)
		}
		got, err := sim.Brief(x.layout)
		if mid := got.Time.Mid; err != nil || !near(mid, want.Time.Mid, 1e-12) || got.Time != (Estimate{Lo: mid, Mid: mid, Hi: mid}) || !near(got.Contention, want.Contention, 1e-12) {
			t.Fatalf("%+v, %v; the step is %+v", got, err, want)
		}
		other := mustSimulate(t, p, x.job, ring)
		half, of := GainError(other, got)
		if again, same := GainError(other, want); !near(half, again, 1e-9) || of != same {
			t.Errorf("%v by %q, want %v by %q", half, of, again, same)
		}
		if half > 0 && len(got.sides) > 1 {
			unlike++
		}
		if at, err := sim.Time(x.layout); err != nil || !near(at, want.Time.Mid, 1e-12) { // and it is quick again
			t.Errorf("%v, %v", at, err)
		}
	})
	if unlike < 30 {
		t.Errorf("%d plans of several device types", unlike)
	}
}
