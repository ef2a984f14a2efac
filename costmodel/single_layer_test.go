package costmodel

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// mixedNodes is a node of two types beside one of one: ranks 0 and 1 are fast, 2 and 3
// slow, 4 and 5 fast on the other node.
func mixedNodes(t testing.TB, p *Profile) Cluster {
	return cluster(t, "1x(2 fast + 2 slow) + 1x2 fast", p, "bus", "net")
}

func newLayers(t testing.TB, p *Profile, j Job) *Layers {
	t.Helper()
	l, err := NewLayers(NewPredictor(p), j)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// passes are Passes that have all their laws.
func (l *Layers) passes(t testing.TB, device string, mask op.Mask, of Documents) (forward, backward units.Seconds) {
	t.Helper()
	forward, backward, err := l.Passes(device, mask, of)
	if err != nil {
		t.Fatal(err)
	}
	return forward, backward
}

// The parts that a replay records add up to the passes to the last bit, and the interval of each
// pass is that of its laws; what is computed again is the forward pass.
func TestLayerPartsAddUpToPasses(t *testing.T) {
	p := withGELU(usual(t))
	for name, change := range blocks() {
		for _, mask := range []op.Mask{op.Full, op.Diag} {
			for _, of := range []Documents{{Tokens: 701, Count: 1}, {Tokens: 300, Count: 7}} {
				for _, recompute := range []Recompute{RecomputeNone, RecomputeFull} {
					j := testJob(mixedNodes(t, p), []units.Tokens{1})
					change(&j.Model)
					j.Recompute = recompute
					l := newLayers(t, p, j)
					forward, backward, err := l.Replayed("slow", mask, of)
					if err != nil {
						t.Fatal(err)
					}
					f, b := l.passes(t, "slow", mask, of)
					sumF, sumB := forward.LinearIn+forward.Attention+forward.LinearOut, backward.LinearOut+backward.Attention+backward.LinearIn
					if recompute == RecomputeFull {
						sumB += sumF
					}
					if f != sumF || b != sumB {
						t.Errorf("%s, %s %v, %s: parts add up to %v and %v, want %v and %v", name, mask, of, recompute, sumF, sumB, f, b)
					}
					// The attention is by the mask; nothing else is.
					a := op.Attention{Mask: mask, QLen: of.Tokens, KVLen: of.Tokens, QHeads: 4, KVHeads: 2, HeadDim: 64, DType: op.F32}
					if of.Count > 1 {
						a.Batch = of.Count
					}
					for _, x := range []struct {
						part  units.Seconds
						whole LayerPass
						s     op.Shape
					}{{forward.Attention, forward, op.AttnFwd{Attention: a}}, {backward.Attention, backward, op.AttnBwd{Attention: a}}} {
						e, err := NewPredictor(p).Time("slow", x.s)
						if err != nil {
							t.Fatal(err)
						}
						w := x.whole.Whole
						if !near(x.part, e.Mid, 1e-12) || x.whole.LinearIn <= 0 || x.whole.LinearOut <= x.whole.LinearIn || !near(w.Mid, x.whole.LinearIn+x.part+x.whole.LinearOut, 1e-12) || !(w.Lo < w.Mid && w.Mid < w.Hi) || w.Source == "" {
							t.Errorf("%s, %s %v: %+v, a call takes %v", name, mask, of, x.whole, e.Mid)
						}
					}
				}
			}
		}
	}
	lacking := *p
	lacking.Laws = slices.DeleteFunc(slices.Clone(p.Laws), func(l Law) bool { return l.Device == "slow" && l.Op == op.KindAttnBwd })
	l := newLayers(t, &lacking, testJob(mixedNodes(t, p), []units.Tokens{1}))
	_, _, err := l.Replayed("slow", op.Diag, Documents{Tokens: 300, Count: 1})
	if _, missing := errors.AsType[*MissingLawError](err); !missing {
		t.Errorf("a law is missing: %v", err)
	}
}

// A layer is the ops of its linear part on all tokens, and one call of attention for all
// sequences.
func TestLayersAreTheSumOfTheirOps(t *testing.T) {
	p := withGELU(usual(t))
	q := NewPredictor(p)
	sum := func(device string, shapes []op.Shape) (total units.Seconds) {
		for _, s := range shapes {
			e, err := q.Time(device, s)
			if err != nil {
				t.Fatal(err)
			}
			total += e.Mid
		}
		return total
	}
	for name, change := range blocks() {
		for _, mask := range []op.Mask{op.Full, op.Diag} {
			for _, of := range []Documents{{Tokens: 700, Count: 1}, {Tokens: 300, Count: 5}} {
				for _, device := range []string{"fast", "slow"} {
					j := testJob(mixedNodes(t, p), []units.Tokens{1})
					change(&j.Model)
					a := op.Attention{Mask: mask, QLen: of.Tokens, KVLen: of.Tokens, QHeads: 4, KVHeads: 2, HeadDim: 64, DType: op.F32}
					if of.Count > 1 {
						a.Batch = of.Count
					}
					forwardOps, backwardOps := linearOps(name, of.Tokens*units.Tokens(of.Count))
					forward := sum(device, append(forwardOps, op.AttnFwd{Attention: a}))
					backward := sum(device, append(backwardOps, op.AttnBwd{Attention: a}))

					f, b := newLayers(t, p, j).passes(t, device, mask, of)
					if !near(f, forward, 1e-12) || !near(b, backward, 1e-12) {
						t.Errorf("%s, %s %v on %s: %v and %v, its ops take %v and %v", name, mask, of, device, f, b, forward, backward)
					}
					j.Recompute = RecomputeFull
					f, b = newLayers(t, p, j).passes(t, device, mask, of)
					if !near(f, forward, 1e-12) || !near(b, forward+backward, 1e-12) {
						t.Errorf("%s, %s %v on %s recomputed: %v and %v, want %v and %v", name, mask, of, device, f, b, forward, forward+backward)
					}
				}
			}
		}
	}
}

// Where attention alone costs anything, a layer takes its pairs of a query and a key that
// it sees: 4 FLOPs for each of 64 elements of 4 heads, at 10^12 a second, and backward five
// products in the place of two.
func TestLayersSeeWhatTheMaskLets(t *testing.T) {
	p := madeUp(t, map[string]speeds{"fast": {attention: 1e12}}, nil)
	j := testJob(cluster(t, "1x1 fast", p, "", ""), []units.Tokens{1})
	l := newLayers(t, p, j)
	for _, c := range []struct {
		mask  op.Mask
		of    Documents
		pairs float64
	}{
		{op.Full, Documents{Tokens: 1000, Count: 1}, 1000 * 1000},
		{op.Full, Documents{Tokens: 1000, Count: 2}, 2 * 1000 * 1000},
		{op.Diag, Documents{Tokens: 1000, Count: 1}, 1000 * 1001 / 2},
		{op.Diag, Documents{Tokens: 10, Count: 7}, 7 * 10 * 11 / 2},
	} {
		f, b := l.passes(t, "fast", c.mask, c.of)
		want := units.Seconds(c.pairs * 4 * 4 * 64 / 1e12)
		if !near(f, want, 1e-9) || !near(b, 2.5*want, 1e-9) {
			t.Errorf("%s %v: %v and %v, want %v and %v", c.mask, c.of, f, b, want, 2.5*want)
		}
	}
}

// layerBytes are the small model's gradients of a layer in float32: 256 x 512 for queries,
// keys and values, 256 x 256 behind the attention, 256 x 1376 and 688 x 256 of the MLP, and
// two norms of 256.
const layerBytes = 4 * (256*512 + 256*256 + 256*1376 + 688*256 + 2*256)

// The exchange takes the link of the node that all ranks are on, else the network: by the
// law of the group of four that was measured, 15 % slower in place of another, with
// 2 (n-1)/n of the bytes on each port.
func TestLayersExchangeOverTheLinkBetweenRanks(t *testing.T) {
	p := usual(t)
	l := newLayers(t, p, testJob(mixedNodes(t, p), []units.Tokens{1}))
	for _, c := range []struct {
		ranks       []int
		alpha, rate float64
	}{
		{[]int{0, 1}, 2e-6, 5e10},
		{[]int{1, 2}, 2e-6, 5e10},
		{[]int{0, 1, 2, 3}, 2e-6, 5e10},
		{[]int{4, 5}, 2e-6, 5e10},
		{[]int{3, 4}, 1e-5, 1e10},
		{[]int{0, 1, 2, 3, 4, 5}, 1e-5, 1e10},
	} {
		n := float64(len(c.ranks))
		want := units.Seconds(1.15 * (c.alpha + 2*(n-1)/n*layerBytes/c.rate))
		if got, err := l.Exchange(op.KindAllReduce, c.ranks); err != nil || !near(got, want, 1e-6) {
			t.Errorf("gradients among %v: %v, %v; want %v", c.ranks, got, err, want)
		}
		if n > 2 {
			continue
		}
		want = units.Seconds(1.15 * (c.alpha + 1e6/c.rate))
		if got, err := l.Send(c.ranks[0], c.ranks[1], 1e6); err != nil || !near(got, want, 1e-6) {
			t.Errorf("a megabyte from %d to %d: %v, %v; want %v", c.ranks[0], c.ranks[1], got, err, want)
		}
	}
	for _, ranks := range [][]int{nil, {3}} {
		if got, err := l.Exchange(op.KindAllReduce, ranks); got != 0 || err != nil {
			t.Errorf("gradients among %v: %v, %v", ranks, got, err)
		}
	}
}

// The account's time is what Passes and Exchange say, with of the exchange what the
// backward pass does not hide, and within its interval.
func TestLayersBriefIsTheirTime(t *testing.T) {
	p := usual(t)
	hidden, partly := 0, 0
	for _, recompute := range []Recompute{RecomputeNone, RecomputeFull} {
		j := testJob(mixedNodes(t, p), []units.Tokens{1})
		j.Recompute = recompute
		l := newLayers(t, p, j)
		for _, ranks := range [][]int{{2}, {2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3, 4, 5}} {
			for _, of := range []Documents{{Tokens: 16, Count: 1}, {Tokens: 300, Count: 2}, {Tokens: 4000, Count: 4}} {
				for _, layers := range []int{1, 7} {
					f, b := l.passes(t, "slow", op.Full, of)
					exchange, err := l.Exchange(op.KindAllReduce, ranks)
					if err != nil {
						t.Fatal(err)
					}
					want := units.Seconds(layers) * (f + b + max(0, exchange-b))
					s, err := l.Brief("slow", op.Full, of, ranks, layers)
					if err != nil || !near(s.Time.Mid, want, 1e-9) || !(s.Time.Lo < s.Time.Mid && s.Time.Mid < s.Time.Hi) {
						t.Errorf("%d layers of %v on %v: %v to %v about %v, %v; want %v", layers, of, ranks, s.Time.Lo, s.Time.Hi, s.Time.Mid, err, want)
					}
					// Every law may be off by a tenth, so their sum is by no more, but for the
					// exchange, whose law is 15 % faster or slower than it is taken for.
					if s.Time.Lo < 0.9/1.15*want || s.Time.Hi > 1.1*1.15*want {
						t.Errorf("%d layers of %v on %v: %v to %v about %v", layers, of, ranks, s.Time.Lo, s.Time.Hi, want)
					}
					switch {
					case exchange > b:
						partly++
					case exchange > 0:
						hidden++
					}
				}
			}
		}
	}
	if hidden == 0 || partly == 0 {
		t.Errorf("%d exchanges are hidden, and %d in part", hidden, partly)
	}
}

// A law that is missing is an error of what needs it, each time, and of nothing else.
func TestLayersLackOnlyTheirOwnLaws(t *testing.T) {
	p := usual(t)
	for i := len(p.Laws) - 1; i >= 0; i-- {
		if l := p.Laws[i]; l.Op == op.KindAllReduce || l.Op == op.KindAttnBwd && l.Variant.Mask == op.Diag && l.Device == "fast" {
			p.Laws = append(p.Laws[:i], p.Laws[i+1:]...)
		}
	}
	l := newLayers(t, p, testJob(mixedNodes(t, p), []units.Tokens{1}))
	of := Documents{Tokens: 100, Count: 2}
	lacks := func(err error, kind op.Kind) {
		t.Helper()
		if missing, ok := errors.AsType[*MissingLawError](err); !ok || missing.Op != kind {
			t.Errorf("%v; want that %s is missing", err, kind)
		}
	}
	for range 2 {
		_, _, err := l.Passes("fast", op.Diag, of)
		lacks(err, op.KindAttnBwd)
		_, err = l.Brief("fast", op.Diag, of, []int{0}, 1)
		lacks(err, op.KindAttnBwd)
		_, err = l.Exchange(op.KindAllReduce, []int{0, 1})
		lacks(err, op.KindAllReduce)
		_, err = l.Brief("slow", op.Diag, of, []int{2, 3}, 1)
		lacks(err, op.KindAllReduce)

		l.passes(t, "fast", op.Full, of)
		l.passes(t, "slow", op.Diag, of)
		if _, err := l.Brief("slow", op.Diag, of, []int{2}, 1); err != nil {
			t.Error(err)
		}
		if _, err := l.Exchange(op.KindReduceScatter, []int{0, 1}); err != nil {
			t.Error(err)
		}
		if _, err := l.Send(0, 1, 1); err != nil {
			t.Error(err)
		}
	}
}

func TestLayersNameTheLinkThatNobodyNamed(t *testing.T) {
	p := usual(t)
	j := testJob(mixedNodes(t, p), []units.Tokens{1})
	j.Cluster.Network, j.Cluster.Nodes[1].Link = "", ""
	l := newLayers(t, p, j)
	for _, c := range []struct {
		ranks []int
		want  string
	}{
		{[]int{0, 4}, "cluster.network: empty"},
		{[]int{4, 5}, "cluster.nodes[1].link: empty"},
	} {
		_, err := l.Exchange(op.KindAllReduce, c.ranks)
		_, sends := l.Send(c.ranks[0], c.ranks[1], 1)
		_, brief := l.Brief("fast", op.Full, Documents{Tokens: 1, Count: 1}, c.ranks, 1)
		for _, err := range []error{err, sends, brief} {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v, want %s", c.ranks, err, c.want)
			}
		}
	}
	if _, err := l.Exchange(op.KindAllReduce, []int{0, 3}); err != nil {
		t.Error(err)
	}
}

func TestNewLayersNamesWhatIsWrong(t *testing.T) {
	p := usual(t)
	for want, damage := range map[string]func(*Job){
		"model: hidden: 0":                    func(j *Job) { j.Model.Hidden = 0 },
		"cluster: nodes: none":                func(j *Job) { j.Cluster.Nodes = nil },
		"device type \"quick\" is not in the": func(j *Job) { j.Cluster.Nodes[1].Devices[0].Device = "quick" },
	} {
		j := testJob(mixedNodes(t, p), []units.Tokens{1})
		damage(&j)
		if _, err := NewLayers(NewPredictor(p), j); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// What an account uses outside its measured range is said to the user.
func TestLayersWarnOfWhatWasNotMeasured(t *testing.T) {
	p := usual(t)
	for i := range p.Laws {
		if l := &p.Laws[i]; l.Op == op.KindNorm {
			l.Range = []AxisRange{{"tokens", 1, 100}, {"width", 1, 1e6}}
		}
	}
	l := newLayers(t, p, testJob(mixedNodes(t, p), []units.Tokens{1}))
	said := func() bool {
		return strings.Contains(strings.Join(l.Warnings(), "\n"), "norm (f32) on fast is used up to")
	}
	if _, err := l.Brief("fast", op.Full, Documents{Tokens: 50, Count: 2}, []int{0}, 1); err != nil || said() {
		t.Errorf("%v, %q", err, l.Warnings())
	}
	if _, err := l.Brief("fast", op.Full, Documents{Tokens: 400, Count: 2}, []int{0}, 1); err != nil || !said() {
		t.Errorf("%v, %q", err, l.Warnings())
	}
}
