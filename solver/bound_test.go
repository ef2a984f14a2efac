package solver

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/optimize/convex/lp"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// simplexWork solves the linear program of LowerBound as it stands.
// Variables: theta, s_1..s_n, p_1..p_n, slack_1..slack_n.
func simplexWork(t *testing.T, rates []rate, tokens, pairs float64) float64 {
	n := len(rates)
	a, b, c := mat.NewDense(n+2, 3*n+1, nil), make([]float64, n+2), make([]float64, 3*n+1)
	c[0] = 1
	b[0], b[1] = tokens, pairs
	for d, k := range rates {
		a.Set(0, 1+d, 1)
		a.Set(1, 1+n+d, 1)
		a.Set(2+d, 0, -1)
		a.Set(2+d, 1+d, k.lin)
		a.Set(2+d, 1+n+d, k.att)
		a.Set(2+d, 1+2*n+d, 1)
	}
	theta, _, err := lp.Simplex(c, a, b, 1e-12, nil)
	if err != nil {
		t.Fatal(err)
	}
	return theta
}

func TestLeastWorkSolvesTheLinearProgram(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		rates := make([]rate, 1+r.IntN(6))
		for d := range rates {
			rates[d] = rate{0.1 + r.Float64(), 0.1 + r.Float64()}
		}
		tokens, pairs := 10*r.Float64(), 10*r.Float64()
		want := simplexWork(t, rates, tokens, pairs)
		if got := leastWork(rates, len(rates), tokens, pairs); math.Abs(got-want) > 1e-9*want {
			t.Errorf("%v, %v tokens, %v pairs: %v, simplex says %v", rates, tokens, pairs, got, want)
		}
	}
}

// A bound for n ranks must hold for every set of n.
func TestLeastWorkHoldsForEverySubset(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	for range 50 {
		rates := make([]rate, 5)
		for d := range rates {
			rates[d] = rate{0.1 + r.Float64(), 0.1 + r.Float64()}
		}
		for set := 1; set < 1<<len(rates); set++ {
			var chosen []rate
			for d := range rates {
				if set>>d&1 == 1 {
					chosen = append(chosen, rates[d])
				}
			}
			bound := leastWork(rates, len(chosen), 3, 2)
			if best := leastWork(chosen, len(chosen), 3, 2); bound > best*(1+1e-12) {
				t.Fatalf("bound %v for %d ranks, but %v do it in %v", bound, len(chosen), chosen, best)
			}
		}
	}
}

// randomLinear switches coefficients on and off, so that each feature is
// sometimes the only one.
func randomLinear(r *rand.Rand) *costmodel.Law {
	draw := func() costmodel.Coef { return coef(r.Float64() * float64(r.IntN(2))) }
	return &costmodel.Law{Linear: &costmodel.Linear{
		Parallel: 1 + r.IntN(8), Launch: coef(1e-9 + 1e6*draw().Value), PerFLOP: draw(), PerRow: draw(), PerByte: draw(), PerTail: coef(10 * draw().Value),
	}, Spread: costmodel.Spread{Lo: 1, Hi: 1}}
}

func TestFloorPerPairHoldsForEveryBlock(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	attentions := []func(op.Attention) op.Featured{
		func(a op.Attention) op.Featured { return op.AttnFwd{Attention: a} },
		func(a op.Attention) op.Featured { return op.AttnBwd{Attention: a} },
	}
	for range 400 {
		law, as := randomLinear(r), attentions[r.IntN(2)]
		kv := 1 + r.IntN(4)
		a := op.Attention{Mask: []op.Mask{op.Full, op.Diag}[r.IntN(2)], QHeads: kv * (1 + r.IntN(4)), KVHeads: kv, HeadDim: 1 + r.IntN(128), DType: op.BF16}
		most := units.Tokens(1 + r.IntN(1<<(1+r.IntN(14))))
		floor := law.FloorPerPair(a, most, as)
		for range 60 {
			a.QLen, a.KVLen = 1+units.Tokens(r.IntN(int(most))), 1+units.Tokens(r.IntN(int(most)))
			if a.Mask == op.Diag {
				a.KVLen = a.QLen
			}
			if got := float64(law.Predict(as(a)).Mid) / a.Pairs(); got < floor*(1-1e-12) {
				t.Fatalf("%+v of %+v: %v a pair, below the floor of %v for blocks up to %d", a, *law.Linear, got, floor, most)
			}
		}
	}
}

func TestFloorPerTokenHoldsForEveryLength(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	for range 300 {
		most := units.Tokens(1 + r.IntN(1<<(1+r.IntN(14))))
		gemm := op.GEMM{Pass: []op.Pass{op.Forward, op.DGrad, op.WGrad}[r.IntN(3)], M: most, N: 1 + r.IntN(300), K: 1 + r.IntN(300), DType: op.BF16}
		law := randomLinear(r)
		floor := floorPerToken(law, gemm)
		elementwise := &costmodel.Law{Spread: costmodel.Spread{Lo: 1, Hi: 1}, Curve: randomCurve(r)}
		norm := op.Norm{Rowwise: op.Rowwise{Tokens: most, Width: 1 + r.IntN(100), DType: op.BF16}}
		if r.IntN(2) == 0 {
			elementwise = randomLinear(r)
		}
		rows := floorPerToken(elementwise, norm)
		for range 60 {
			m := 1 + units.Tokens(r.IntN(int(most)))
			gemm.M, norm.Tokens = m, m
			if got := float64(law.Predict(gemm).Mid) / float64(m); got < floor*(1-1e-12) {
				t.Fatalf("%+v of %+v: %v a token, below the floor of %v up to %d", gemm, *law.Linear, got, floor, most)
			}
			if got := float64(elementwise.Predict(norm).Mid) / float64(m); got < rows*(1-1e-12) {
				t.Fatalf("%+v of %+v: %v a token, below the floor of %v up to %d", norm, elementwise, got, rows, most)
			}
		}
	}
}

func randomCurve(r *rand.Rand) *costmodel.Curve {
	if r.IntN(2) == 0 {
		c := &costmodel.Curve{Form: costmodel.AlphaBeta}
		from := units.Bytes(0)
		for range 1 + r.IntN(3) {
			c.Pieces = append(c.Pieces, costmodel.Piece{From: from, Alpha: coef(r.Float64()), Beta: coef(1e-6 + 1e-4*r.Float64())})
			from += 1 + units.Bytes(r.IntN(1<<18))
		}
		return c
	}
	c := &costmodel.Curve{Form: costmodel.LogLog}
	at, s := units.Bytes(1+r.IntN(1000)), r.Float64()
	for range 1 + r.IntN(4) {
		s += r.Float64()
		c.Knots = append(c.Knots, costmodel.Knot{Bytes: at, Seconds: units.Seconds(s)})
		at *= 1 + units.Bytes(1+r.IntN(50))
	}
	return c
}

func TestBoundIsBelowEveryLayout(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	for range 80 {
		p := randomWorld(t, r)
		bound, err := LowerBound(p)
		if err != nil {
			t.Fatal(err)
		}
		n := len(p.ranks)
		layouts := []costmodel.Layout{costmodel.ZigZag(equalSplit(p.Job.SeqLen, n)), solveWith(t, p, evenKeel{}).Layout}
		for range 6 {
			layouts = append(layouts, randomLayout(r, p.Job.SeqLen, n))
		}
		for _, l := range layouts {
			step, err := p.simulate(l)
			if err != nil {
				t.Fatal(err)
			}
			if bound > step.Time.Mid*(1+1e-9) {
				t.Fatalf("bound %v above %v of %+v on %s, %+v", bound, step.Time.Mid, l, p.Job.Cluster, p.Job)
			}
		}
	}
}

// A ring of two equal ranks over a wire on which all else vanishes moves what the
// bound counts, but for the waits between forward and backward traffic.
func TestBoundOfASlowWireIsTight(t *testing.T) {
	for _, cluster := range []string{"1x2 fast", "2x1 fast"} {
		tiny := fast()
		tiny.memory = 1 << 50
		p := problemOf(t, testProfile([]device{tiny}, []wire{{"near", 0, 1e-3}, {"far", 0, 1e-3}}), testJob(t, cluster, 4096))
		f, err := newFloors(p)
		if err != nil {
			t.Fatal(err)
		}
		step, err := p.simulate(costmodel.ZigZag(equalSplit(4096, 2)))
		if err != nil {
			t.Fatal(err)
		}
		if ring := float64(step.Time.Mid) - f.exchange(2); f.wire(2) > ring || f.wire(2) < 0.9*ring {
			t.Errorf("%s: wire %v s of the ring's %v s", cluster, f.wire(2), ring)
		}
	}
}

// With laws of nothing but rates a lone rank has no choice, so its bound must be
// its time: no cost that the simulator charges is missing from the floors.
func TestBoundOfALoneRankIsItsTime(t *testing.T) {
	for _, again := range []costmodel.Recompute{costmodel.RecomputeNone, costmodel.RecomputeFull} {
		d := fast()
		d.bytes = math.Inf(1) // bytes of weights do not shrink with tokens
		profile := testProfile([]device{d}, []wire{nearLink(), farLink()})
		for i := range profile.Laws {
			if l := &profile.Laws[i]; l.Linear != nil && l.Linear.PerFLOP.Value == 0 {
				l.Linear.PerByte = coef(1e-11)
			}
		}
		job := testJob(t, "1x1 fast", 4096)
		job.Recompute = again
		p := problemOf(t, vary(rand.New(rand.NewPCG(6, 1)), profile), job)
		bound, err := LowerBound(p)
		if err != nil {
			t.Fatal(err)
		}
		step, err := p.simulate(costmodel.ZigZag([]units.Tokens{4096}))
		if err != nil {
			t.Fatal(err)
		}
		if !near(float64(bound), float64(step.Time.Mid)) {
			t.Errorf("recompute %s: bound %v, time %v", again, bound, step.Time.Mid)
		}
	}
}
