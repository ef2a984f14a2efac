package fit

import "testing"

// BenchmarkFitCollectives fits the 24 tables of one library, of 16 sizes each.
func BenchmarkFitCollectives(b *testing.B) {
	all := libraries(b, "aiconfigurator/a100_sxm/nccl.csv")
	var laws [][]Point
	for _, r := range all[0] {
		laws = append(laws, r.points)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := curveLaws(fabricOfTable(all[0][0]), laws); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N)/float64(len(laws)), "ms/curve")
}
