package fit

import (
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
)

// unseenSize predicts groups of n ranks from the smaller ones of every library.
func unseenSize(t testing.TB, all [][]recorded, n int, report func(r recorded, law *costmodel.Law)) {
	for _, lib := range all {
		var laws [][]Point
		var of []recorded
		for _, r := range lib {
			if r.group.Ranks() < n {
				laws, of = append(laws, r.points), append(of, r)
			}
		}
		if len(laws) == 0 || len(laws) == len(lib) {
			continue
		}
		_, fits, err := curveLaws(fabricOfTable(of[0]), laws)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fits {
			for _, s := range f.steps("gpu", "link") {
				law := s.Law(n)
				for _, r := range lib {
					if p := r.points[0].Shape; r.group.Ranks() == n && p.Kind() == s.Op && p.Variant() == s.Variant {
						report(r, law)
					}
				}
			}
		}
	}
}

// What the steps reach on groups of 8 when only 2 and 4 were measured. The aim
// on NVLink was 8 / 6 / 22 %; the limits leave a tenth of room above what was
// reached.
func TestCollectivesOfUnseenGroupSizes(t *testing.T) {
	sequential(t)
	all := libraries(t, "aiconfigurator/*/nccl.csv", "aiconfigurator/*/custom_allreduce.csv")
	byClass := map[string][]score{}
	var inside insideCounts
	unseenSize(t, all, 8, func(r recorded, law *costmodel.Law) {
		names := []string{classOf(r)}
		if names[0] == "nvlink" {
			names = append(names, "nvlink "+r.device.Name)
		}
		for _, name := range names {
			byClass[name] = append(byClass[name], scoreOf(timeOf(law.Curve), r.points))
			for _, p := range r.points {
				inside.add(name, insideCurve(law.Curve, p))
			}
		}
	})
	for _, name := range sortedKeys(byClass) {
		s := medianScore(byClass[name])
		t.Logf("%-26s %3d tables, %4d points: %4.1f / %4.1f / %4.1f %%, %.0f %% inside", name, len(byClass[name]), s.n, s.mape, s.median, s.p95, 100*float64(inside.in[name])/float64(inside.of[name]))
		if share := float64(inside.in[name]) / float64(inside.of[name]); share < 0.8 {
			t.Errorf("%s: %.0f %% inside", name, 100*share)
		}
	}
	if got := medianScore(byClass["nvlink"]); got.mape > 7.5 || got.median > 5.7 || got.p95 > 18 {
		t.Errorf("nvlink: %.1f / %.1f / %.1f %%, want at most 7.5 / 5.7 / 18", got.mape, got.median, got.p95)
	}
}
