package costmodel

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// doubtful is a law with a 90 % interval by a factor either way, and doubts of it.
func doubtful(device string, ratio float64, shared ...Doubt) *Law {
	return &Law{Op: op.KindAttnBwd, Device: device, Spread: Spread{Lo: 1 / ratio, Hi: ratio}, Doubts: shared}
}

// at is the estimate of so long by the law.
func (l *Law) at(t units.Seconds) Estimate {
	return Estimate{Lo: t * units.Seconds(l.Spread.Lo), Mid: t, Hi: t * units.Seconds(l.Spread.Hi)}
}

// TestDoubtsOfOneLawAreItsInterval: however it is shared out.
func TestDoubtsOfOneLawAreItsInterval(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		l := doubtful("x", rapid.Float64Range(1.01, 3).Draw(r, "ratio"))
		for range rapid.IntRange(0, 3).Draw(r, "doubts") {
			l.Doubts = append(l.Doubts, Doubt{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "of"), rapid.Float64Range(1.01, 2).Draw(r, "by")})
		}
		names := map[string]bool{}
		for _, d := range l.Doubts {
			if names[d.Of] {
				r.Skip() // the same doubt twice
			}
			names[d.Of] = true
		}
		var a account
		want := l.at(units.Seconds(rapid.Float64Range(1e-6, 1e3).Draw(r, "seconds")))
		a.add(0, l, want)
		if got := a.total(); !near(got.Lo, want.Lo, 1e-9) || !near(got.Hi, want.Hi, 1e-9) || got.Mid != want.Mid {
			r.Fatalf("%+v of %+v, whose doubts are %+v", got, want, l.Doubts)
		}
	})
}

// TestSharedDoubtsCancel: what two laws have wrong alike adds up within a step and is
// no difference between one and the other; what each has of its own stays.
func TestSharedDoubtsCancel(t *testing.T) {
	kernel := Doubt{"backward kernels", RemainingFactor(1.7, 1.2)}
	full, diag := doubtful("full", 1.7, kernel), doubtful("diag", 1.7, kernel)
	other := doubtful("diag", 1.7) // errs by itself
	step := func(l *Law) *Step { return stepOf(map[*Law]Estimate{l: l.at(10)}) }

	var both, apart account
	both.add(0, full, full.at(10))
	both.add(1, diag, diag.at(10))
	apart.add(0, full, full.at(10))
	apart.add(1, other, other.at(10))
	share := math.Log(kernel.Ratio) / math.Log(1.7)
	own := math.Sqrt(1 - share*share)
	if got, want := float64(both.total().Hi-20), 7*math.Hypot(2*share, math.Hypot(own, own)); !near(units.Seconds(got), units.Seconds(want), 1e-9) {
		t.Errorf("together %v more, want %v", got, want)
	}
	if got, want := float64(apart.total().Hi-20), 7*math.Sqrt2; !near(units.Seconds(got), units.Seconds(want), 1e-9) {
		t.Errorf("of independent laws %v more, want %v", got, want)
	}
	half, most := GainError(step(full), step(diag))
	if want := 10 * own * math.Hypot(1-1/1.7, 0.7); !near(half, units.Seconds(want), 1e-9) || !strings.HasPrefix(most, "attn_bwd") {
		t.Errorf("%v by %q, want %v by one of the two", float64(half), most, want)
	}
	if half, _ := GainError(step(full), step(other)); float64(half) < 8 {
		t.Errorf("%v of laws that share nothing", float64(half))
	}
	more := stepOf(map[*Law]Estimate{full: full.at(10), diag: diag.at(10)})
	if half, most := GainError(more, step(diag)); most != kernel.Of {
		t.Errorf("%v by %q, want most by what both laws share", float64(half), most)
	}
}

// TestPassedOnDoubts: a law made from another is as doubtful as that one, for the same
// reasons.
func TestPassedOnDoubts(t *testing.T) {
	l := doubtful("x", 2, Doubt{"links", 1.5})
	made := doubtful("y", CombineFactors(2, 1.4), l.PassedOn()...)
	if got := made.PassedOn(); len(got) != 3 || got[0].Of != "links" || got[1].Of != l.Title() || got[2].Of != made.Title() {
		t.Fatalf("%+v", got)
	}
	if got := made.PassedOn(); math.Abs(got[2].Ratio-1.4) > 1e-9 || math.Abs(got[1].Ratio-RemainingFactor(2, 1.5)) > 1e-9 {
		t.Errorf("%+v", got)
	}
}

// TestPaddedHeadsHaveTheDoubtsOfWider: of a law that is a guess, and that of filling up.
func TestPaddedHeadsHaveTheDoubtsOfWider(t *testing.T) {
	wide := doubtful("x", 1.7, Doubt{"backward kernels", 1.5})
	wide.Variant, wide.Assumed = op.Variant{Mask: op.Diag, HeadDim: 128, DType: op.BF16}, "a guess"
	narrow := wide.Variant
	narrow.HeadDim = 80
	l, err := NewPredictor(&Profile{Laws: []Law{*wide}}).Law("x", op.KindAttnBwd, narrow)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Doubts; len(got) != 3 || got[0] != wide.Doubts[0] || got[1].Of != wide.Title() || got[2] != (Doubt{"heads of 80 elements on x", paddedSpread}) {
		t.Errorf("%+v", got)
	}
	if l.ownLog() > 1e-6 || math.Abs(l.Spread.Hi-CombineFactors(1.7, paddedSpread)) > 1e-9 {
		t.Errorf("%v of its own, interval up to %v", l.ownLog(), l.Spread.Hi)
	}
}

// TestCollectivesOfAnAssumedLinkShareItsRate: whichever they are, and those of one kind
// in all groups.
func TestCollectivesOfAnAssumedLinkShareItsRate(t *testing.T) {
	laws := func(count int) []Law {
		_, laws := AssumedWire{Class: "rdma", Members: []op.Member{{Device: "x", Count: count}}, Nodes: 2, Latency: NetLatency, One: 1e10, All: 1e10}.Laws()
		return laws
	}
	few, many := laws(4), laws(8)
	for i := range few {
		if few[i].Doubts[0] != many[0].Doubts[0] || few[i].Doubts[1] != many[i].Doubts[1] || i > 0 && few[i].Doubts[1].Of == few[0].Doubts[1].Of {
			t.Errorf("%s: %+v of few, %+v of many ranks", few[i].Op, few[i].Doubts, many[i].Doubts)
		}
		if own := few[i].PassedOn()[2].Ratio; math.Abs(own-wireGroup) > 1e-9 {
			t.Errorf("%s: %v of its own, want %v", few[i].Op, own, wireGroup)
		}
	}
}

func TestDoubtsAreChecked(t *testing.T) {
	for field, d := range map[string]Doubt{
		"doubts[0].of: empty":     {"", 2},
		"doubts[0].ratio: 1:":     {"x", 1},
		"doubts[0].ratio: NaN:":   {"x", math.NaN()},
		"doubts[0].ratio: -2:":    {"x", -2},
		"doubts[0].ratio: 1e+06:": {"x", 1e6},
	} {
		l := doubtful("x", 2, d)
		if err := l.validateDoubts(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: %v, want %q", d, err, field)
		}
	}
}
