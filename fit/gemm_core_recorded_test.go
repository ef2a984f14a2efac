package fit

import (
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// TestGEMMCoreOnRecordings holds rows of others' recordings out.
func TestGEMMCoreOnRecordings(t *testing.T) {
	all := tables(t, "aiconfigurator/*/gemm_*.csv")
	for _, how := range []struct {
		name string
		by   func([]Point) func(Point) bool
	}{{"quarter", quarter}, {"taller", taller}, {"wider", wider}} {
		var scores []score
		for _, r := range all {
			train, test := divide(r.points, how.by)
			start := time.Now()
			core, err := fitGEMMCore(r.device, train, nil)
			if err != nil {
				t.Fatalf("%s: %v", r.name, err)
			}
			s := scoreOf(func(s op.Shape) float64 { return core.Seconds(s.(op.GEMM)) }, test)
			scores = append(scores, s)
			t.Logf("%s: %-45s %5d held: %5.2f %5.2f %5.1f   %.1fs", how.name, r.name, s.n, s.mape, s.median, s.p95, time.Since(start).Seconds())
		}
		m := medianScore(scores)
		t.Logf("%s: median over tables: %.2f / %.2f / %.1f", how.name, m.mape, m.median, m.p95)
	}
}

// wider holds products of more than a quarter of the most outputs or inputs out.
func wider(points []Point) func(Point) bool {
	n, k := beyond(1, 0.25)(points), beyond(2, 0.25)(points)
	return func(p Point) bool { return n(p) || k(p) }
}
