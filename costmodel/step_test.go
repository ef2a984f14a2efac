package costmodel

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// stepOf is a step that rests on so much of each law.
func stepOf(laws map[*Law]Estimate) *Step {
	var a account
	for l, e := range laws {
		a.laws = append(a.laws, booked{e, l})
	}
	return &Step{Time: a.total(), laws: laws}
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

// TestStepsWhoseIntervalsDoNotMeetDiffer: whatever the laws, and however much of them
// both use.
func TestStepsWhoseIntervalsDoNotMeetDiffer(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		draw := func(name string) float64 { return rapid.Float64Range(0.1, 10).Draw(r, name) }
		a, b := map[*Law]Estimate{}, map[*Law]Estimate{}
		for range rapid.IntRange(1, 6).Draw(r, "laws") {
			l, lo, hi := &Law{Device: rapid.StringN(1, 8, -1).Draw(r, "device")}, draw("lo"), draw("hi")
			for at, use := range []map[*Law]Estimate{a, b} {
				if rapid.Bool().Draw(r, "uses") {
					mid := draw("mid") * math.Pow(10, float64(at))
					use[l] = Estimate{Lo: units.Seconds(mid / (1 + lo)), Mid: units.Seconds(mid), Hi: units.Seconds(mid * (1 + hi))}
				}
			}
		}
		faster, slower := stepOf(a), stepOf(b)
		half, _ := GainError(slower, faster)
		if slower.Time.Lo > faster.Time.Hi && half >= slower.Time.Mid-faster.Time.Mid {
			r.Fatalf("%v and %v differ by no more than %v", faster.Time, slower.Time, float64(half))
		}
	})
}
