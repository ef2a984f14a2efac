package fit

import (
	"errors"
	"math"
	"slices"

	"gonum.org/v1/gonum/mat"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// family is the collectives of one library among devices of one type over one
// class of links. Its curves are estimated together: what the physics of a
// curve is, and how it differs from that physics, is alike for all of them, so
// that one curve's points tell where another, sparser one bends.
//
// Log times are a Gaussian process: physics with uncertain parameters, smooth
// residuals and noise (Rasmussen and Williams 2006, section 2.7). The physics
// is not linear in its parameters, so the whole is linearised around the last
// estimate and solved again until it stays.
type family struct {
	curves []*sizeCurve
	fabric fabric
	base   float64 // log of the shortest time: where the prior of alpha starts
}

// sizeCurve is the points of one law: one variant of one collective in groups
// of one size.
type sizeCurve struct {
	id        int // its place in the family, or -1 for one that was not measured
	kind      op.Kind
	variant   op.Variant
	ranks     int
	wire      float64 // bytes on the busiest port a byte of the message
	doublings float64
	octaves   []float64 // log2 of the message's bytes, by point
	logs      []float64 // log of the seconds, by point
}

// newSizeCurve gathers points of one law. Sizes are those of the message; where
// a shape has none they are the bytes on the busiest port.
func newSizeCurve(points []Point) *sizeCurve {
	s := points[0].Shape
	c := unmeasured(s.Kind(), s.Variant(), s.(op.Grouped).Ranks())
	for _, p := range points {
		c.octaves = append(c.octaves, c.octave(p.Shape))
		c.logs = append(c.logs, math.Log(p.Seconds))
	}
	return c
}

// unmeasured is a curve without points.
func unmeasured(k op.Kind, v op.Variant, ranks int) *sizeCurve {
	return &sizeCurve{id: -1, kind: k, variant: v, ranks: ranks, wire: wireShare(k, ranks), doublings: doublings(ranks)}
}

func (c *sizeCurve) octave(s op.Shape) float64 {
	return math.Log2(max(1, float64(op.Volume(s))/c.wire))
}

// volume is the bytes on the busiest port of a message of 2^u bytes.
func (c *sizeCurve) volume(u float64) units.Bytes {
	return units.Bytes(math.Round(c.wire * math.Exp2(u)))
}

// messageKinds are the collectives of one message among the ranks of a group.
var messageKinds = [...]op.Kind{op.KindAllReduce, op.KindAllGather, op.KindReduceScatter, op.KindAllToAll, op.KindSendRecv}

// wireShare is what share of a message's bytes crosses the busiest port.
func wireShare(k op.Kind, ranks int) float64 {
	if !slices.Contains(messageKinds[:], k) {
		return 1
	}
	const large = 1 << 40 // where the rounding of chunks is nothing
	return float64(op.Volume(op.OfMessage(k, op.Message{Group: ranks, Bytes: large}))) / large
}

// newFamily gathers curves over links of one kind.
func newFamily(curves []*sizeCurve, link func(best float64) fabric) *family {
	f := &family{curves: curves, base: math.Inf(1)}
	best, least := 0.0, math.Inf(1)
	for id, c := range curves {
		c.id = id
		least = min(least, slices.Min(c.octaves))
		for i, u := range c.octaves {
			f.base = min(f.base, c.logs[i])
			best = max(best, c.wire*math.Exp2(u)/math.Exp(c.logs[i]))
		}
	}
	if least >= largeOctave {
		f.base = min(f.base, math.Log(usualAlpha))
	}
	f.fabric = link(best)
	return f
}

const (
	// usualAlpha is the latency in seconds that is expected where no message tells it: those of
	// largeOctave, as log2 of the bytes, and more. Of others' collectives it is 5
	// to 80 us.
	usualAlpha  = 4e-5
	largeOctave = 16
)

// sighting is one point of a family.
type sighting struct {
	curve *sizeCurve
	at    int // its place among the curve's points
	u, y  float64
}

// familyFit is an estimate of a family.
type familyFit struct {
	*family
	seen    []sighting
	growth  map[op.Kind]float64 // r of lengthening, by collective
	theta   []params            // by curve
	slopes  []params            // of log t by the parameters, by sighting
	noise   float64
	likely  float64   // the largest noise that is likely, of the intervals
	trust   []float64 // Huber's weights
	shared  *mat.SymDense
	known   *mat.SymDense // shared, and the parameters' part: the covariance without noise
	over    *mat.VecDense // what the prior leaves over
	chol    mat.Cholesky
	inverse mat.SymDense  // of the covariance of the points
	pull    *mat.VecDense // inverse covariance times what the prior leaves over
	evident float64       // log of the evidence for the noise, but for a constant
	off     []left        // what its points were off by when left out
}

const (
	// usualNoise is the middle of the prior of the noise, firstNoise where the
	// climb begins, leastNoise what no measurement undercuts.
	usualNoise, firstNoise, leastNoise = 0.02, 0.01, 0.001
	// smallNoise is what the noise grows by for every five octaves below
	// quietOctave: small messages are timed in a few clock ticks.
	smallNoise  = 0.02
	quietOctave = 14
	// firstRounds settle an estimate from the prior, nextRounds one from a
	// neighbour's.
	firstRounds, nextRounds = 7, 2
	// noiseStep is between two noises that are tried, and mostSteps how often.
	noiseStep, mostSteps = 1.6, 10
	// clip is where a point's residual stops to pull harder, in units of noise.
	clip = 1.5
	// furthest bounds the step of a parameter: the linearisation holds nearby.
	furthest = 1.5
)

// fit estimates the family, the noise of its points included, which is the
// most likely one: gloo on a busy machine and NCCL on NVLink differ by ten.
func (f *family) fit() (*familyFit, error) {
	t := &familyFit{family: f, growth: map[op.Kind]float64{}, theta: make([]params, len(f.curves)), noise: firstNoise}
	for _, c := range f.curves {
		t.growth[c.kind] = usualGrowth(c.kind)
		for i, u := range c.octaves {
			t.seen = append(t.seen, sighting{c, i, u, c.logs[i]})
			t.trust = append(t.trust, 1)
		}
	}
	if len(t.seen) == 0 {
		return nil, errors.New("a family without points")
	}
	for _, c := range f.curves {
		t.theta[c.id] = t.prior(c)
	}
	t.slopes = make([]params, len(t.seen))
	t.shareResiduals()
	if err := t.rounds(firstRounds); err != nil {
		return nil, err
	}
	if err := t.tune(); err != nil {
		return nil, err
	}
	if err := t.rounds(1); err != nil {
		return nil, err
	}
	if err := t.chol.InverseTo(&t.inverse); err != nil {
		return nil, err
	}
	t.likely = t.likelyNoise()
	t.off = t.leaveOut()
	return t, nil
}

// tune climbs to the noise that the points are likeliest with.
func (t *familyFit) tune() error {
	for _, factor := range []float64{noiseStep, 1 / noiseStep} {
		moved := false
		for range mostSteps {
			before, evident := t.noise, t.evident
			t.noise *= factor
			if t.noise < leastNoise {
				t.noise = before
				break
			}
			if err := t.rounds(nextRounds); err != nil {
				return err
			}
			if t.evident <= evident {
				t.noise = before
				if err := t.rounds(nextRounds); err != nil {
					return err
				}
				break
			}
			moved = true
		}
		if moved {
			break
		}
	}
	return nil
}

// rounds linearises and solves n times.
func (t *familyFit) rounds(n int) error {
	for range n {
		if err := t.solve(); err != nil {
			return err
		}
		theta := make([]params, len(t.curves))
		for _, c := range t.curves {
			theta[c.id] = t.toward(c, t.theta[c.id])
		}
		t.learnGrowth()
		t.theta = theta
		t.reweigh()
	}
	return nil
}

// prior is the mean of a curve's parameters before its points, around the
// present estimate of the growth of its alpha.
func (t *familyFit) prior(c *sizeCurve) params {
	r := t.growth[c.kind]
	log, slope := lengthening(r, c.ranks)
	return params{
		t.base + log + slope*(usualGrowth(c.kind)-r),
		math.Log(c.wire*t.fabric.perByte) + t.fabric.growth*crowding(c.ranks),
		// What a chunk costs does not grow with the group, though alpha does.
		math.Log(usualKappa) - log,
	}
}

// covariance of parameter p between two curves.
func (t *familyFit) covariance(p int, a, b *sizeCurve) float64 {
	switch p {
	case logAlpha:
		_, g := lengthening(t.growth[a.kind], a.ranks)
		_, h := lengthening(t.growth[b.kind], b.ranks)
		return alphaDeviations.covariance(a, b, g, h)
	case logBeta:
		return t.fabric.sd.covariance(a, b, crowding(a.ranks), crowding(b.ranks))
	}
	return kappaDeviations.covariance(a, b, a.doublings, b.doublings)
}

// shareResiduals fills in the part of the covariance that no round changes.
func (t *familyFit) shareResiduals() {
	n := len(t.seen)
	t.shared = mat.NewSymDense(n, nil)
	for i, a := range t.seen {
		for j := i; j < n; j++ {
			t.shared.SetSym(i, j, residualCovariance(a.curve, a.u, t.seen[j].curve, t.seen[j].u))
		}
	}
}

func residualCovariance(a *sizeCurve, u float64, b *sizeCurve, v float64) float64 {
	sum := 0.0
	for _, r := range residuals {
		sum += r.covariance(a, u, b, v)
	}
	return sum
}

// noiseAt is the standard deviation of a point's noise.
func (t *familyFit) noiseAt(u float64) float64 {
	return t.noise + smallNoise*max(0, quietOctave-u)/5
}

// solve conditions the linearised family on its points.
func (t *familyFit) solve() error {
	n := len(t.seen)
	left := mat.NewVecDense(n, nil)
	for i, o := range t.seen {
		theta, prior := t.theta[o.curve.id], t.prior(o.curve)
		at, slope := theta.log(o.u)
		z := o.y - at
		for p := range slope {
			z += slope[p] * (theta[p] - prior[p])
		}
		left.SetVec(i, z)
		t.slopes[i] = slope
	}
	between := t.parameterCovariances()
	k := mat.NewSymDense(n, nil)
	for i, a := range t.seen {
		for j := i; j < n; j++ {
			v := t.shared.At(i, j)
			for p, c := range between[a.curve.id][t.seen[j].curve.id] {
				v += t.slopes[i][p] * t.slopes[j][p] * c
			}
			k.SetSym(i, j, v)
		}
	}
	t.known, t.over = mat.NewSymDense(n, nil), left
	t.known.CopySym(k)
	for i, a := range t.seen {
		s := t.noiseAt(a.u)
		k.SetSym(i, i, k.At(i, i)+s*s/t.trust[i])
	}
	if !t.chol.Factorize(k) {
		return errors.New("the covariance of the collectives' points is singular")
	}
	t.pull = mat.NewVecDense(n, nil)
	if err := t.chol.SolveVecTo(t.pull, left); err != nil {
		return err
	}
	unusual := math.Log(t.noise / usualNoise)
	t.evident = -(mat.Dot(left, t.pull) + t.chol.LogDet() + unusual*unusual) / 2
	return nil
}

// parameterCovariances are those of every parameter between every two curves.
func (t *familyFit) parameterCovariances() [][]params {
	all := make([][]params, len(t.curves))
	for i, a := range t.curves {
		all[i] = make([]params, len(t.curves))
		for j, b := range t.curves {
			for p := range numParams {
				all[i][j][p] = t.covariance(p, a, b)
			}
		}
	}
	return all
}

// parameters are the posterior means of any curve's parameters, measured or not.
func (t *familyFit) parameters(c *sizeCurve) params {
	theta := t.prior(c)
	for p := range theta {
		for i, o := range t.seen {
			theta[p] += t.covariance(p, c, o.curve) * t.slopes[i][p] * t.pull.AtVec(i)
		}
	}
	return theta
}

// toward steps from the last parameters to the posterior's.
func (t *familyFit) toward(c *sizeCurve, last params) params {
	theta := t.parameters(c)
	for p := range theta {
		theta[p] = last[p] + max(-furthest, min(furthest, theta[p]-last[p]))
	}
	return theta
}

// learnGrowth moves r of every collective to its posterior mean.
func (t *familyFit) learnGrowth() {
	const step, least, most = 0.7, -4, 1
	next := map[op.Kind]float64{}
	for kind, last := range t.growth {
		r := usualGrowth(kind)
		for i, o := range t.seen {
			_, slope := lengthening(t.growth[o.curve.kind], o.curve.ranks)
			v := alphaDeviations.allGrowth * alphaDeviations.allGrowth
			if o.curve.kind == kind {
				v += alphaDeviations.kindGrowth * alphaDeviations.kindGrowth
			}
			r += v * slope * t.slopes[i][logAlpha] * t.pull.AtVec(i)
		}
		next[kind] = max(least, min(most, max(last-step, min(last+step, r))))
	}
	t.growth = next
}

// reweigh gives points whose noise would be beyond clip Huber's weight.
func (t *familyFit) reweigh() {
	for i, o := range t.seen {
		t.trust[i] = trusted(t.noiseAt(o.u), t.trust[i], t.pull.AtVec(i))
	}
}

// trusted is Huber's weight of a point with a noise, a last weight and a pull.
func trusted(noise, last, pull float64) float64 {
	e := noise / last * math.Abs(pull) // the point's own share of what is left over
	return max(1e-3, min(1, clip/max(e, 1e-9)))
}

// log predicts the log time of a curve, measured or not, at u = log2 of the
// message's bytes, and how far off a measurement may be.
func (t *familyFit) log(c *sizeCurve, theta params, u float64) (mean float64, d reach) {
	_, slope := theta.log(u)
	k := mat.NewVecDense(len(t.seen), nil)
	for i, o := range t.seen {
		r := residualCovariance(c, u, o.curve, o.u)
		for p := range slope {
			r += slope[p] * t.slopes[i][p] * t.covariance(p, c, o.curve)
		}
		k.SetVec(i, r)
	}
	v := residualCovariance(c, u, c, u)
	for p := range slope {
		v += slope[p] * slope[p] * t.covariance(p, c, c)
	}
	weights := mat.NewVecDense(len(t.seen), nil)
	weights.MulVec(&t.inverse, k)
	return t.mean(c, theta, u), t.reachOf(u, v-mat.Dot(k, weights), weights.AtVec)
}

// mean is the mean of log alone, in a time that grows with the points and not their square.
func (t *familyFit) mean(c *sizeCurve, theta params, u float64) float64 {
	mean, _ := theta.log(u)
	for i, o := range t.seen {
		mean += residualCovariance(c, u, o.curve, o.u) * t.pull.AtVec(i)
	}
	return mean
}
