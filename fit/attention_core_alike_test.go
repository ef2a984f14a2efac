package fit

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
)

// A law of few points has one interval for all shapes, and a wider one between measured
// lengths where whole tiles leave open what happens there, be it the device's own or lent by
// one with other tiles. Times stay, and what was measured is no less sure.
func TestFewPointsAreLessSureBetweenLengths(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	dev := coreDevice()
	drawn := func(r *rand.Rand) int { return int(128 * math.Exp2(7*r.Float64())) }
	powers := func(r *rand.Rand) int { return 128 << r.IntN(8) }
	of := func(tile int, seed uint64, n int, length func(*rand.Rand) int) []Point {
		kernel := expectedCore(dev, inventedAttention(dev, 4, 51), tile, tile)
		kernel.Parallel, kernel.TileRows, kernel.TileKeys = dev.Parallel, tile, tile
		r := rand.New(rand.NewPCG(seed, 1))
		var points []Point
		seen := map[string]bool{}
		for len(points) < n {
			heads := 1 << r.IntN(7)
			s := attentionShape(length(r), 1<<r.IntN(4), heads, heads)
			p := pointOf(dev, s, kernel.Seconds(s.Attention, false)*math.Exp(0.01*r.NormFloat64()))
			if !seen[p.Key] {
				points, seen[p.Key] = append(points, p), true
			}
		}
		return points
	}
	lender := dev
	lender.Name, lender.Fingerprint = "lender", "lender"
	donors := []Donor{{Law: lawFrom(t, lender, of(128, 55, 200, drawn)), Device: lender}}
	train, between := of(64, 60, 60, powers), of(64, 52, 300, drawn)
	for name, donors := range map[string][]Donor{"own": nil, "lent": donors} {
		fitted := &task{Stratum: stratumOf(train[0]), points: train}
		d := NewData()
		d.Devices = append(d.Devices, dev)
		if estimate(d, []*task{fitted}, donors); fitted.err != nil {
			t.Fatal(fitted.err)
		}
		law := fitted.law
		if law.Width == nil {
			t.Fatalf("%s: no wider between lengths", name)
		}
		blind := *law
		blind.Width = nil
		holds, without := coverage(law, between), coverage(&blind, between)
		t.Logf("%s, %s: %.2f inside, %.2f without widths between lengths", name, law.Form(), holds, without)
		if holds < 0.85 || without > holds-0.03 || name == "own" && without > holds-0.15 {
			t.Errorf("%s: %.2f inside, %.2f without widths between lengths", name, holds, without)
		}
		half := func(l *costmodel.Law, p Point) float64 {
			e := l.Predict(p.Shape)
			return math.Log(float64(e.Hi / e.Mid))
		}
		for _, p := range append(of(64, 57, 50, powers), between...) {
			if law.Predict(p.Shape).Mid != blind.Predict(p.Shape).Mid {
				t.Fatalf("%s, %s: another time", name, p.Key)
			}
		}
		for _, p := range of(64, 57, 50, powers) {
			if now, was := half(law, p), half(&blind, p); now > was*(1+1e-9) || now < was*(1-2*fieldStep) {
				t.Errorf("%s, %s: half a width of %.5f where it was measured, %.5f before", name, p.Key, now, was)
			}
		}
	}
	if law := lawFrom(t, dev, of(64, 54, 100, drawn)); law.Width != nil {
		t.Errorf("lengths that are no whole tiles tell the tiles, and widths are %+v", law.Width.Unmeasured)
	}
}
