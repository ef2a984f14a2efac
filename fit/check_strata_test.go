package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// pairsOf makes pairs of one op at one size whose log(predicted/measured) are given. Their
// intervals reach from a quarter to four times the prediction, so that only errors count.
func pairsOf(on string, s op.Shape, source costmodel.Source, logs ...float64) []Pair {
	return pairsWithin(4, on, s, source, logs...)
}

// pairsWithin makes pairs whose intervals reach from the prediction over a factor to the
// prediction times it.
func pairsWithin(factor units.Seconds, on string, s op.Shape, source costmodel.Source, logs ...float64) []Pair {
	var pairs []Pair
	for _, l := range logs {
		mid := units.Seconds(1e-3 * math.Exp(l))
		pairs = append(pairs, newPair(Point{On: on, Shape: s, Seconds: 1e-3, visits: []float64{1e-3}}, costmodel.Estimate{Lo: mid / factor, Mid: mid, Hi: mid * factor, Source: source}))
	}
	return pairs
}

func attentionOf(length units.Tokens) op.Shape {
	return op.AttnFwd{Attention: op.Attention{Mask: op.Diag, QLen: length, KVLen: length, QHeads: 8, KVHeads: 8, HeadDim: 128, DType: op.BF16}}
}

// spreadOver gives n log ratios evenly from -e to e, moved by a bias.
func spreadOver(n int, e, bias float64) []float64 {
	logs := make([]float64, n)
	for i := range logs {
		logs[i] = bias + e*(2*float64(i)/float64(n-1)-1)
	}
	return logs
}

func strataOf(pairs []Pair, groups ...op.GroupType) []CheckedStratum {
	r := &Report{Pairs: pairs}
	r.strata(DefaultLimits(), groups)
	return r.Strata
}

func TestVerdictsOfStrata(t *testing.T) {
	long, short := attentionOf(8192), attentionOf(1024)
	reduce := op.AllReduce{Message: op.Message{Group: 8, Bytes: 1 << 20}}
	nvlink := op.NewGroupType([]op.Member{{Device: "gpu", Count: 8}}, 1, "nvlink")
	pcie := op.NewGroupType([]op.Member{{Device: "gpu", Count: 8}}, 1, "pcie_gen5")
	wide := op.NewGroupType([]op.Member{{Device: "gpu", Count: 8}}, 2, "ib")
	tail := spreadOver(100, 0.01, 0)
	for i := range 8 {
		tail[i] = 0.3
	}
	for _, c := range []struct {
		name    string
		pairs   []Pair
		limit   string
		verdict Verdict
		broken  int
	}{
		{"well inside", pairsOf("gpu", long, costmodel.Interpolated, spreadOver(50, 0.03, 0)...), "attention-long", Pass, 0},
		{"mean and bias", pairsOf("gpu", long, costmodel.Interpolated, spreadOver(50, 0.01, 0.06)...), "attention-long", Fail, 2},
		{"bias alone", pairsOf("gpu", long, costmodel.Interpolated, spreadOver(50, 0.005, -0.035)...), "attention-long", Fail, 1},
		{"tail alone", pairsOf("gpu", long, costmodel.Interpolated, tail...), "attention-long", Fail, 1},
		{"the same is allowed below 4k", pairsOf("gpu", short, costmodel.Interpolated, spreadOver(50, 0.01, 0.06)...), "attention-short", Pass, 0},
		{"the estimate holds, its bound does not", pairsOf("gpu", long, costmodel.Interpolated, spreadOver(24, 0.095, 0)...), "attention-long", Fail, 2},
		{"19 points", pairsOf("gpu", long, costmodel.Interpolated, spreadOver(19, 1, 1)...), "attention-long", Insufficient, 0},
		{"beyond the range", pairsOf("gpu", long, costmodel.Extrapolated, spreadOver(50, 0.01, 0.055)...), "attention-beyond", Pass, 0},
		{"beyond the range, far off", pairsOf("gpu", long, costmodel.Extrapolated, spreadOver(50, 0.01, 0.5)...), "attention-beyond", Fail, 3},
		{"transferred", pairsOf("gpu", long, costmodel.Transferred, spreadOver(50, 0.01, 0.5)...), CoverageID, Pass, 0}, // of whose wide interval all are inside
		{"a CPU", pairsOf("cpu:2", long, costmodel.Interpolated, spreadOver(50, 0.01, 0.5)...), "cpu-not-gated", Ungated, 0},
		{"inside a node", pairsOf(nvlink.Name, reduce, costmodel.Interpolated, spreadOver(50, 0.01, 0.13)...), "collective-node", Fail, 1},
		{"over PCIe", pairsOf(pcie.Name, reduce, costmodel.Interpolated, spreadOver(50, 0.01, 0.13)...), "collective-pcie", Pass, 0},
		{"between nodes", pairsOf(wide.Name, reduce, costmodel.Interpolated, spreadOver(50, 0.01, 0.13)...), "collective-nodes", Pass, 0},
		{"measured counts as inside", pairsOf("gpu", long, costmodel.Measured, spreadOver(50, 0.03, 0)...), "attention-long", Pass, 0},
	} {
		got := strataOf(c.pairs, nvlink, pcie, wide)
		if len(got) != 1 {
			t.Errorf("%s: %d strata", c.name, len(got))
			continue
		}
		if s := got[0]; s.LimitID != c.limit || s.Verdict != c.verdict || len(s.Broken) != c.broken || (s.Excess() > 1) != (c.verdict == Fail) {
			t.Errorf("%s: limit %q, verdict %s, broken %q, excess %.2f; want %q, %s, %d", c.name, s.LimitID, s.Verdict, s.Broken, s.Excess(), c.limit, c.verdict, c.broken)
		}
	}
}

// covering gives n log ratios that are well within the limits of errors, of which so many lie
// inside an interval that reaches half a percent.
func covering(n, inside int) []float64 {
	logs := make([]float64, n)
	for i := range logs {
		logs[i] = 0.01
		if i%2 == 0 {
			logs[i] = -0.01
		}
		if i < inside {
			logs[i] = 0
		}
	}
	return logs
}

// A law whose errors are small and whose interval holds too few of the points fails. Of 20
// points 10 have an upper bound of 67.3 %, and 11 one of 71.7 %.
func TestNarrowIntervalsFail(t *testing.T) {
	long := attentionOf(8192)
	for _, c := range []struct {
		name   string
		pairs  []Pair
		strata Verdict
		family Verdict
	}{
		{"the bound is below", pairsWithin(1.005, "gpu", long, costmodel.Interpolated, covering(20, 10)...), Fail, Fail},
		{"the share is below, its bound is not", pairsWithin(1.005, "gpu", long, costmodel.Interpolated, covering(20, 11)...), Pass, Pass},
		{"27 of 100", pairsWithin(1.005, "gpu", long, costmodel.Interpolated, covering(100, 27)...), Fail, Fail},
		{"none of 19", pairsWithin(1.005, "gpu", long, costmodel.Interpolated, covering(19, 0)...), Insufficient, Insufficient},
		{"beyond the range", pairsWithin(1.005, "gpu", long, costmodel.Extrapolated, covering(100, 27)...), Fail, Insufficient},
		{"borrowed, whose errors have no limit", pairsWithin(1.005, "gpu", long, costmodel.Transferred, covering(100, 27)...), Fail, Insufficient},
		{"assumed", pairsWithin(1.005, "gpu", long, costmodel.Assumed, covering(20, 10)...), Fail, Insufficient},
		{"assumed, and the bound holds", pairsWithin(1.005, "gpu", long, costmodel.Assumed, covering(20, 11)...), Pass, Insufficient},
		{"borrowed, none of 19", pairsWithin(1.005, "gpu", long, costmodel.Transferred, covering(19, 0)...), Ungated, Insufficient},
		{"a CPU, whose families alone are judged", pairsWithin(1.005, "cpu:2", long, costmodel.Interpolated, covering(100, 27)...), Ungated, Fail},
	} {
		r := &Report{Pairs: c.pairs}
		r.rows(DefaultLimits())
		r.strata(DefaultLimits(), nil)
		s, row := r.Strata[0], r.Rows[0]
		if s.Verdict != c.strata || row.Verdict != c.family || r.Failed(false) != (c.strata == Fail || c.family == Fail) {
			t.Errorf("%s: stratum %s %q, family %s %q; want %s, %s", c.name, s.Verdict, s.Broken, row.Verdict, row.Broken, c.strata, c.family)
		}
		for _, broken := range [][]string{s.Broken, row.Broken} {
			if len(broken) > 0 && (len(broken) != 1 || !strings.Contains(broken[0], "inside the 90 % interval")) {
				t.Errorf("%s: %q", c.name, broken)
			}
		}
		if (s.Excess() > 1) != (c.strata == Fail) {
			t.Errorf("%s: excess %.2f", c.name, s.Excess())
		}
	}
	none := DefaultLimits()
	none.Coverage = &CoverageLimit{Reason: "not asked here"}
	r := &Report{Pairs: pairsWithin(1.005, "gpu", long, costmodel.Interpolated, covering(100, 0)...)}
	r.rows(none)
	r.strata(none, nil)
	if r.Failed(true) || r.Strata[0].Verdict != Pass {
		t.Errorf("without a limit: %+v, %+v", r.Rows, r.Strata)
	}
}

// Sources, bands, devices and ops are strata apart; a good one does not hide a bad one.
func TestStrataAreNeverPooled(t *testing.T) {
	good := spreadOver(200, 0.01, 0)
	bad := spreadOver(30, 0.01, 0.2)
	for name, other := range map[string][]Pair{
		"source": pairsOf("gpu", attentionOf(8192), costmodel.Extrapolated, bad...),
		"band":   pairsOf("gpu", attentionOf(32<<10), costmodel.Interpolated, bad...),
		"device": pairsOf("gpu2", attentionOf(8192), costmodel.Interpolated, bad...),
		"op":     pairsOf("gpu", op.AttnBwd{Attention: attentionOf(8192).(op.AttnFwd).Attention}, costmodel.Interpolated, bad...),
	} {
		got := strataOf(append(pairsOf("gpu", attentionOf(8192), costmodel.Interpolated, good...), other...))
		if len(got) != 2 || got[0].Points+got[1].Points != 230 || (got[0].Verdict == Fail) == (got[1].Verdict == Fail) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Of several variants in a stratum each with enough points is judged alone too.
func TestVariantsArePartsOfTheirStratum(t *testing.T) {
	narrow := attentionOf(8192).(op.AttnFwd)
	narrow.HeadDim = 64
	few := attentionOf(8192).(op.AttnFwd)
	few.HeadDim = 256
	pairs := slices.Concat(
		pairsOf("gpu", attentionOf(8192), costmodel.Interpolated, spreadOver(400, 0.01, 0)...),
		pairsOf("gpu", narrow, costmodel.Interpolated, spreadOver(20, 0.01, 0.2)...),
		pairsOf("gpu", few, costmodel.Interpolated, spreadOver(5, 0.01, 0.2)...))
	got := strataOf(pairs)
	if len(got) != 3 || got[0].Part || got[0].Points != 425 || !got[1].Part || !got[2].Part {
		t.Fatalf("%+v", got)
	}
	for _, s := range got[1:] {
		if bad := s.Variant.HeadDim == 64; bad != (s.Verdict == Fail) {
			t.Errorf("%s: %s", s.String(), s.Verdict)
		}
	}
}

// A limit below the scatter of the points' own repeats is not asked for, and
// the floor is what a perfect law shows: checked by simulation.
func TestNoiseIsTheFloorOfErrors(t *testing.T) {
	const sigma = 0.12
	rng := rand.New(rand.NewPCG(5, 6))
	var pairs []Pair
	for range 4000 {
		visits := []float64{math.Exp(sigma * rng.NormFloat64()), math.Exp(sigma * rng.NormFloat64())}
		x := Point{On: "gpu", Shape: attentionOf(8192), Seconds: stats.Median(visits), visits: visits}
		pairs = append(pairs, newPair(x, costmodel.Estimate{Lo: 0.8, Mid: 1, Hi: 1.25, Source: costmodel.Interpolated}))
	}
	s := strataOf(pairs)[0]
	if s.Floor == nil || s.Floor.Points != 4000 {
		t.Fatalf("floor %+v", s.Floor)
	}
	if want := math.Sqrt(2/math.Pi) * sigma / math.Sqrt2; math.Abs(s.Floor.MAPE/want-1) > 0.05 || math.Abs(s.Floor.MAPE/s.MAPE-1) > 0.08 || math.Abs(s.Floor.P95/s.P95-1) > 0.08 {
		t.Errorf("floor %+v, want a MAPE of %.4f; a perfect law's MAPE is %.4f, its P95 %.4f", *s.Floor, want, s.MAPE, s.P95)
	}
	quiet := CheckedStratum{Upper: &StratumUpper{MAPE: 0.06}, Limit: StratumBound{MAPE: 0.05}}
	noisy := quiet
	noisy.Floor = &StratumFloor{Points: 20, MAPE: 0.07}
	quiet.judge()
	noisy.judge()
	if quiet.Verdict != Fail || noisy.Verdict != Pass {
		t.Errorf("quiet %s, noisy %s", quiet.Verdict, noisy.Verdict)
	}
}

// Few repeats say nothing of a stratum's noise: one point whose visits lie far apart does not
// excuse errors of all others, and the report says that it was seen and did not count.
func TestFewRepeatsAreNoFloor(t *testing.T) {
	short := attentionOf(1024) // whose limit is one of the MAPE alone
	for _, c := range []struct {
		points, repeated int
		verdict          Verdict
	}{
		{920, 1, Fail},
		{920, 19, Fail},
		{920, 20, Pass},
		{40, 9, Fail},
		{40, 10, Pass},
		{20, 4, Fail},
		{20, 5, Pass},
	} {
		pairs := pairsOf("gpu", short, costmodel.Interpolated, spreadOver(c.points, 0.3, 0)...)
		for i := range c.repeated {
			p := &pairs[i*len(pairs)/c.repeated]
			p.Visits, p.Noise = 3, 0.7
		}
		s := strataOf(pairs)[0]
		if s.Floor == nil || s.Floor.Points != c.repeated || s.Floor.MAPE < 0.2 {
			t.Errorf("%d of %d repeated: floor %+v", c.repeated, c.points, s.Floor)
		}
		if s.Verdict != c.verdict {
			t.Errorf("%d of %d repeated: %s %q, want %s", c.repeated, c.points, s.Verdict, s.Broken, c.verdict)
		}
		said := slices.ContainsFunc(s.Broken, func(b string) bool { return strings.Contains(b, "does not count") })
		if said != (c.verdict == Fail) {
			t.Errorf("%d of %d repeated: %q", c.repeated, c.points, s.Broken)
		}
	}
}

// The counted bootstrap is the plain one: same draws, same statistics.
func TestBoundsAreThePlainBootstraps(t *testing.T) {
	sequential(t)
	rng := rand.New(rand.NewPCG(7, 8))
	for _, n := range []int{1, 2, 3, 19, 20, 57, 400} {
		logs := make([]float64, n)
		for i := range logs {
			logs[i] = math.Round(rng.NormFloat64()*20) / 200 // with ties
		}
		slices.Sort(logs)
		got := upperBounds(logs)
		plain := func(statistic func([]float64) float64) float64 {
			return stats.UpperBound(stats.Bootstrap(logs, statistic, bootstrapDraws, bootstrapSeed), 0.95)
		}
		magnitudes := func(of func([]float64) float64) func([]float64) float64 {
			return func(x []float64) float64 {
				y := slices.Clone(x)
				for i := range y {
					y[i] = math.Abs(y[i])
				}
				return of(y)
			}
		}
		want := statistics{
			median: plain(magnitudes(stats.Median)),
			mean: plain(magnitudes(func(x []float64) float64 {
				sum := 0.0
				for _, v := range x {
					sum += v
				}
				return sum / float64(len(x))
			})),
			p90:  plain(magnitudes(func(x []float64) float64 { return stats.Quantile(x, 0.9) })),
			p95:  plain(magnitudes(func(x []float64) float64 { return stats.Quantile(x, 0.95) })),
			bias: plain(func(x []float64) float64 { return math.Abs(stats.Median(x)) }),
		}
		for i, pair := range [][2]float64{{got.median, want.median}, {got.mean, want.mean}, {got.p90, want.p90}, {got.p95, want.p95}, {got.bias, want.bias}} {
			if math.Abs(pair[0]-pair[1]) > 1e-12 {
				t.Errorf("n = %d, statistic %d: %v, want %v", n, i, pair[0], pair[1])
			}
		}
		if again := upperBounds(logs); again != got {
			t.Errorf("n = %d: the same points give other bounds: %v, %v", n, got, again)
		}
	}
}

// A worse stratum never turns fail into pass: where every error grows and none
// changes its side, no bound of mean or tail falls; and where all grow by one
// factor, neither does that of the bias.
func TestWorseNeverPasses(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	rng := rand.New(rand.NewPCG(9, 10))
	fails := 0
	for range 150 {
		n := MinPoints + rng.IntN(80)
		logs, worse, scaled := make([]float64, n), make([]float64, n), make([]float64, n)
		factor := 1 + rng.Float64()
		for i := range logs {
			logs[i] = 0.1*rng.Float64()*rng.NormFloat64() + 0.03*rng.Float64()
			worse[i] = logs[i] * (1 + rng.Float64())
			scaled[i] = logs[i] * factor
		}
		verdict := func(logs []float64, limit StratumBound) Verdict {
			f := &Limits{Strata: []StratumLimit{{ID: "x", StratumBound: limit}}}
			r := &Report{Pairs: pairsOf("gpu", attentionOf(8192), costmodel.Interpolated, logs...)}
			r.strata(f, nil)
			return r.Strata[0].Verdict
		}
		for _, limit := range []StratumBound{{MAPE: 0.05}, {P95: 0.12}, {MAPE: 0.04, P95: 0.2}} {
			if verdict(logs, limit) == Fail {
				fails++
				if verdict(worse, limit) != Fail {
					t.Fatalf("%+v: %v fails, %v does not", limit, logs, worse)
				}
			}
		}
		all := StratumBound{MAPE: 0.05, P95: 0.15, Bias: 0.02}
		if verdict(logs, all) == Fail && verdict(scaled, all) != Fail {
			t.Fatalf("%v fails, times %v it does not", logs, factor)
		}
	}
	if fails < 50 || fails > 400 {
		t.Errorf("%d of 450 fail: the limits are not where the errors are", fails)
	}
}

func TestUndecidedStrataAreNamed(t *testing.T) {
	r := &Report{Pairs: slices.Concat(
		pairsOf("gpu", attentionOf(8192), costmodel.Interpolated, spreadOver(5, 0.01, 0)...),
		pairsOf("gpu", attentionOf(1024), costmodel.Interpolated, spreadOver(30, 0.01, 0)...),
		pairsOf("gpu", attentionOf(8192), costmodel.Transferred, spreadOver(5, 0.01, 0)...))}
	r.strata(DefaultLimits(), nil)
	if got := r.Undecided(); len(got) != 1 || got[0] != "attn_fwd 4k-16k on gpu" {
		t.Errorf("%q", got)
	}
	if r.Failed(false) {
		t.Error("too few points are no failure")
	}
	r.Drift = &DriftReport{Verdict: Drifted}
	if !r.Failed(false) {
		t.Error("a drift is a failure")
	}
	r.Drift.Verdict = Ambiguous
	if r.Failed(false) {
		t.Error("an ambiguous drift is none")
	}
}

func TestBands(t *testing.T) {
	for _, c := range []struct {
		shape op.Shape
		want  string
	}{
		{attentionOf(4095), "<4k"},
		{attentionOf(4096), "4k-16k"},
		{op.AttnFwd{Attention: op.Attention{Mask: op.Full, QLen: 16, KVLen: 64 << 10, QHeads: 1, KVHeads: 1, HeadDim: 64, DType: op.BF16}}, ">=64k"},
		{op.GEMM{Pass: op.Forward, M: 1000, N: 1000, K: 499, DType: op.BF16}, "<1 GFLOP"},
		{op.GEMM{Pass: op.Forward, M: 1000, N: 1000, K: 500, DType: op.BF16}, "1-100 GFLOP"},
		{op.AllReduce{Message: op.Message{Group: 2, Bytes: 65536}}, "64 KiB-1 MiB"},
		{op.AllReduce{Message: op.Message{Group: 2, Bytes: 1 << 30}}, ">=16 MiB"},
		{op.H2D{Copy: op.Copy{Bytes: 1<<20 - 1}}, "<1 MiB"},
	} {
		if got := BandOf(c.shape); got != c.want {
			t.Errorf("%+v: %q, want %q", c.shape, got, c.want)
		}
	}
	for _, spec := range op.Table() {
		bands := BandsOf(spec.Kind)
		if (len(bands) > 0) != (spec.Measures == op.Time) {
			t.Errorf("%s: %d bands", spec.Kind, len(bands))
		}
		for i, b := range bands {
			if (b.Below == 0) != (i == len(bands)-1) || i > 0 && b.Below > 0 && b.Below <= bands[i-1].Below {
				t.Errorf("%s: bands do not rise: %v", spec.Kind, bands)
			}
		}
		if spec.Measures == op.Time && !bandExists(BandOf(spec.Example)) {
			t.Errorf("%s: its example is in no band", spec.Kind)
		}
	}
}

func BenchmarkBounds(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	logs := make([]float64, 5000)
	for i := range logs {
		logs[i] = 0.05 * rng.NormFloat64()
	}
	slices.Sort(logs)
	for b.Loop() {
		upperBounds(logs)
	}
}
