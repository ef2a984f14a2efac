package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// A library that treats every head count a little differently: what it does at
// one count shows at no other, so that intervals must be wider at counts that
// were not measured, and hold there what they promise.
func TestIntervalsAreWiderAtUnmeasuredCounts(t *testing.T) {
	if testing.Short() {
		t.Skip("fits too much for the race detector")
	}
	dev := coreDevice()
	taste := func(heads float64) float64 {
		return math.Exp(0.06 * rand.New(rand.NewPCG(uint64(heads), 41)).NormFloat64())
	}
	var train, test []Point
	for _, p := range inventedAttention(dev, 1200, 42) {
		h := costmodel.AxisOf("q_heads", p.Shape)
		p.Seconds *= taste(h)
		// Counts of 2^k stay, so that others lie between them.
		train = append(train, p)
		a := p.Shape.(op.AttnFwd)
		s := attentionShape(int(a.QLen), a.Blocks(), 3*a.QHeads, a.KVHeads)
		if h > 1 && h < 16 {
			test = append(test, pointOf(dev, s, waves(dev, s.Attention)*taste(3*h)*math.Exp(fieldNoise*rand.New(rand.NewPCG(hashOf(p.Key), 43)).NormFloat64())))
		}
	}
	law := mustCorrect(t, dev, train)
	if few := mustCorrect(t, dev, train[:fewToRefit+50]).Width.Unmeasured; few == nil {
		t.Error("a law of 200 points takes unmeasured counts for measured ones")
	}
	u := law.Width.Unmeasured
	if u == nil || u.Axis != "q_heads" || !slices.Contains(u.Known, 8) || slices.Contains(u.Known, 12) {
		t.Fatalf("%+v", u)
	}
	for i, v := range law.Width.Values {
		if u.Values[i] < v {
			t.Errorf("node %d: %d at unmeasured counts, %d at measured ones", i, u.Values[i], v)
		}
	}
	known, other := coverage(law, train), coverage(law, test)
	blind := *law
	width := *law.Width
	blind.Width, width.Unmeasured = &width, nil
	without := coverage(&blind, test)
	t.Logf("inside: %.2f at measured counts, %.2f at others, %.2f of these without widths of their own", known, other, without)
	if known < 0.85 || other < 0.8 || without > other-0.1 {
		t.Errorf("inside: %.2f at measured counts, %.2f at others, %.2f of these without widths of their own", known, other, without)
	}
}

// Errors of nothing, as of simulated times without noise, have widths too.
func TestWidthsOfNoErrors(t *testing.T) {
	points := inventedAttention(coreDevice(), 200, 44)
	shape := attentionField(points, 64)
	w := shape.widths(points, unseenErrors{logs: make([]float64, len(points)), counts: make([]float64, len(points))}, 0.9)
	for _, p := range points {
		if at := w.WidthLog(p.Shape); !(at < -20) {
			t.Fatalf("%s: half a width of exp(%v)", p.Key, at)
		}
	}
	a := points[0].Shape.(op.AttnFwd)
	a.QHeads = 7
	if at := w.WidthLog(a); at < math.Log(untoldCausal)-0.01 {
		t.Errorf("7 heads: half a width of exp(%v), less than what powers of two leave untold", at)
	}
}
