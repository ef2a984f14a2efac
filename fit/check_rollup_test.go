package fit

import (
	"fmt"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// A table of collectives that is too sparse for any of its strata is judged as
// a whole, of one link class and of interpolated points alone; dense strata are
// not judged twice.
func TestSparseStrataAreRolledUp(t *testing.T) {
	var groups []op.GroupType
	var pairs []Pair
	for _, link := range []string{"nvlink", "pcie"} {
		bias := map[string]float64{"nvlink": 0.01, "pcie": 0.3}[link]
		for _, n := range []int{2, 4, 8} {
			g := op.NewGroupType([]op.Member{{Device: "gpu", Count: n}}, 1, link)
			groups = append(groups, g)
			for _, kind := range []op.Kind{op.KindAllGather, op.KindAllReduce} {
				for _, b := range []units.Bytes{1 << 10, 1 << 18, 1 << 22, 1 << 26} {
					s := op.OfMessage(kind, op.Message{Group: n, Bytes: b})
					pairs = append(pairs, pairsOf(g.Name, s, costmodel.Interpolated, spreadOver(2, 0.02, bias)...)...)
					pairs = append(pairs, pairsOf(g.Name, s, costmodel.Transferred, 2)...)
				}
			}
		}
	}
	verdicts := map[string]Verdict{}
	for _, s := range strataOf(pairs, groups...) {
		switch {
		case s.Band == All:
			verdicts[s.String()] = s.Verdict
		case s.Verdict != Insufficient && s.Source == costmodel.Interpolated:
			t.Errorf("%s: %s with %d points", s.String(), s.Verdict, s.Points)
		}
	}
	want := map[string]Verdict{
		"all_gather, all bands on gpu over nvlink": Pass, "all_reduce, all bands on gpu over nvlink": Pass,
		"all_gather, all bands on gpu over pcie": Fail, "all_reduce, all bands on gpu over pcie": Fail,
	}
	if fmt.Sprint(verdicts) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", verdicts, want)
	}
}

// Ops that are too sparse even over all their bands are taken together.
func TestSparseOpsAreRolledUp(t *testing.T) {
	back := op.AttnBwd{Attention: attentionOf(32 << 10).(op.AttnFwd).Attention}
	pairs := pairsOf("gpu", attentionOf(8192), costmodel.Interpolated, spreadOver(8, 0.01, 0.2)...)
	pairs = append(pairs, pairsOf("gpu", attentionOf(32<<10), costmodel.Interpolated, spreadOver(8, 0.01, 0.2)...)...)
	pairs = append(pairs, pairsOf("gpu", back, costmodel.Interpolated, spreadOver(8, 0.01, 0.2)...)...)
	all := strataOf(pairs)
	last := all[len(all)-1]
	if last.String() != "attention, all ops and bands on gpu" || last.Points != 24 || last.Verdict != Fail || last.LimitID != "attention-long" {
		t.Errorf("%+v", last)
	}
	dense := strataOf(append(pairsOf("gpu", attentionOf(8192), costmodel.Interpolated, spreadOver(30, 0.01, 0)...), pairsOf("gpu", attentionOf(32<<10), costmodel.Interpolated, spreadOver(30, 0.01, 0)...)...))
	if len(dense) != 2 {
		t.Errorf("dense strata are judged again: %+v", dense)
	}
}

// namedOnce are the names of strata, each of which should be there once.
func namedOnce(t *testing.T, pairs []Pair) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for _, s := range strataOf(pairs) {
		seen[s.String()]++
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s: %d times", name, n)
		}
	}
	return seen
}

// A sparse op that is alone in its family is rolled up over its bands, once.
func TestALoneSparseOpIsRolledUpOnce(t *testing.T) {
	pairs := pairsOf("gpu", attentionOf(8192), costmodel.Interpolated, spreadOver(8, 0.01, 0.2)...)
	pairs = append(pairs, pairsOf("gpu", attentionOf(32<<10), costmodel.Interpolated, spreadOver(8, 0.01, 0.2)...)...)
	seen := namedOnce(t, pairs)
	if seen["attn_fwd, all bands on gpu"] != 1 {
		t.Errorf("%v", seen)
	}
}

// Ops that two limits share between them by their bands are rolled up once a limit, under
// names that tell the two apart: a report of CI keeps one case a name.
func TestRollUpsOfSeveralLimitsHaveNamesOfTheirOwn(t *testing.T) {
	var pairs []Pair
	for _, tokens := range []units.Tokens{1 << 10, 8 << 10, 32 << 10} {
		forward := attentionOf(tokens)
		pairs = append(pairs, pairsOf("gpu", forward, costmodel.Interpolated, spreadOver(8, 0.01, 0)...)...)
		back := op.AttnBwd{Attention: forward.(op.AttnFwd).Attention}
		pairs = append(pairs, pairsOf("gpu", back, costmodel.Interpolated, spreadOver(8, 0.01, 0)...)...)
	}
	seen := namedOnce(t, pairs)
	for _, limit := range []string{"attention-short", "attention-long"} {
		if name := "attention, all ops and bands of " + limit + " on gpu"; seen[name] != 1 {
			t.Errorf("no %q: %v", name, seen)
		}
	}
}
