package fit

import (
	"math"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
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
	all := libraries(t, "aiconfigurator/*/nccl.csv", "aiconfigurator/*/custom_allreduce.csv")
	byClass := map[string][]score{}
	in, of := map[string]int{}, map[string]int{}
	unseenSize(t, all, 8, func(r recorded, law *costmodel.Law) {
		names := []string{classOf(r)}
		if names[0] == "nvlink" {
			names = append(names, "nvlink "+r.device.Name)
		}
		s := scoreOf(func(s op.Shape) float64 { return float64(law.Seconds(s)) }, r.points)
		for _, name := range names {
			byClass[name] = append(byClass[name], s)
			for _, p := range r.points {
				half, _ := law.Curve.HalfWidth(op.Volume(p.Shape))
				of[name]++
				if math.Abs(math.Log(p.Seconds/float64(law.Seconds(p.Shape)))) <= half {
					in[name]++
				}
			}
		}
	})
	for _, name := range sortedKeys(byClass) {
		s := medianScore(byClass[name])
		t.Logf("%-26s %3d tables, %4d points: %4.1f / %4.1f / %4.1f %%, %.0f %% inside", name, len(byClass[name]), s.n, s.mape, s.median, s.p95, 100*float64(in[name])/float64(of[name]))
	}
	if got := medianScore(byClass["nvlink"]); got.mape > 7.5 || got.median > 5.7 || got.p95 > 18 {
		t.Errorf("nvlink: %.1f / %.1f / %.1f %%, want at most 7.5 / 5.7 / 18", got.mape, got.median, got.p95)
	}
}
