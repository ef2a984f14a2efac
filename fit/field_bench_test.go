package fit

import (
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// pointsAnOp is about what others' tables hold of one op of a device type.
const pointsAnOp = 5000

// BenchmarkFitDevice fits one device type's laws of attention and GEMM, with
// cores, corrections and widths. On one core it takes less than 10 s.
func BenchmarkFitDevice(b *testing.B) {
	dev := coreDevice()
	d := NewData()
	d.Devices = []op.DeviceType{dev}
	d.Points = append(manyAttention(dev, pointsAnOp), inventedGEMM(dev, pointsAnOp, 1)...)
	for b.Loop() {
		p, err := Fit(d, Defaults())
		if err != nil {
			b.Fatal(err)
		}
		for _, l := range p.Laws {
			if l.Correction == nil || l.Width == nil {
				b.Fatalf("%s has no correction or no width", l.Op)
			}
		}
	}
	b.ReportMetric(float64(len(d.Points)), "points")
}

// manyAttention are more shapes than inventedAttention knows: other lengths too.
func manyAttention(dev op.DeviceType, n int) []Point {
	points := inventedAttention(dev, n/3, 1)
	for _, stretch := range []int{3, 5} {
		for _, p := range inventedAttention(dev, n/3, uint64(stretch)) {
			a := p.Shape.(op.AttnFwd)
			s := attentionShape(int(a.QLen)*stretch/2, a.Blocks(), a.QHeads, a.KVHeads)
			points = append(points, pointOf(dev, s, p.Seconds*waves(dev, s.Attention)/waves(dev, a.Attention)))
		}
	}
	return points
}
