package bound

import (
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// stage is a stretch of a step at whose end all ranks meet.
type stage int

const (
	forwardLayer stage = iota
	backwardLayer
	lossStage
	stageCount
)

// linearFloor is the least that a device type charges for the linear work of a
// rank with some tokens: of the ranges of tokens that it is cut into, what the
// cheapest number of each costs in every stage, attention left out.
type linearFloor struct {
	calls [stageCount][]call
	laws  [stageCount][]*costmodel.Law
	job   costmodel.Job
	cells []cell
	chunk float64 // what the ops of a whole chunk of the loss cost
}

// cell is the numbers of tokens from lo to hi, with floors of their cost.
type cell struct {
	lo, hi units.Tokens
	cost   [stageCount]float64
}

// call is an op that a rank runs so many times over in a layer or the loss.
type call struct {
	at    func(units.Tokens) op.Shape
	times float64
}

// linear finds the floors of a device type in wide cells; split makes finer ones.
func (f *floors) linear(device string) (*linearFloor, error) {
	l := &linearFloor{job: f.job}
	l.calls = [stageCount][]call{forwardCalls(f.job), backwardCalls(f.job), lossCalls(f.job)}
	for s := range l.calls {
		for _, c := range l.calls[s] {
			shape := c.at(1)
			law, err := f.predictor.Law(device, shape.Kind(), shape.Variant())
			if err != nil {
				return nil, err
			}
			l.laws[s] = append(l.laws[s], law)
		}
	}
	l.chunk = l.chunked(l.job.LossChunk, l.job.LossChunk)
	l.cells = []cell{{}}
	for lo := units.Tokens(1); lo <= f.job.SeqLen; {
		hi := min(f.job.SeqLen, max(2*lo, 64))
		l.cells = append(l.cells, l.cell(lo, hi))
		lo = hi + 1
	}
	return l, nil
}

// cell prices the numbers of tokens from lo to hi.
func (l *linearFloor) cell(lo, hi units.Tokens) cell {
	c := cell{lo: lo, hi: hi}
	for s := range c.cost {
		if stage(s) == lossStage {
			c.cost[s] = l.loss(lo, hi)
			continue
		}
		c.cost[s] = l.least(stage(s), l.calls[s], lo, hi)
	}
	return c
}

func (l *linearFloor) least(s stage, calls []call, lo, hi units.Tokens) float64 {
	total := 0.0
	for i, c := range calls {
		total += c.times * leastBetween(l.laws[s][i], c.at, lo, hi)
	}
	return total
}

// loss is the final norm and whole chunks, and what a rest costs: for the numbers
// with as many whole chunks as lo the least of their rests, for those with more
// at least a rest that is nearly a chunk.
func (l *linearFloor) loss(lo, hi units.Tokens) float64 {
	chunk := l.job.LossChunk
	total := l.least(lossStage, l.calls[lossStage][:1], lo, hi)
	if whole := lo / chunk; whole > 0 {
		total += float64(whole) * l.chunk
	}
	if rest := lo % chunk; rest > 0 {
		to := chunk
		if hi/chunk == lo/chunk {
			to = hi % chunk
		}
		total += l.chunked(rest, to)
	}
	return total
}

// chunked is the ops of a chunk of the loss that has lo to hi tokens.
func (l *linearFloor) chunked(lo, hi units.Tokens) float64 {
	total := 0.0
	laws := l.laws[lossStage][1:]
	for i, c := range l.calls[lossStage][1:] {
		total += c.times * leastBetween(laws[i], c.at, lo, hi)
	}
	return total
}

// split cuts cell i into up to n.
func (l *linearFloor) split(i, n int) {
	c := l.cells[i]
	var parts []cell
	ratio := math.Pow(float64(c.hi)/float64(max(1, c.lo-1)), 1/float64(n))
	for lo, at := c.lo, float64(max(1, c.lo-1)); lo <= c.hi; {
		at *= ratio
		hi := min(c.hi, max(lo, l.aligned(at, c.hi)))
		parts = append(parts, l.cell(lo, hi))
		lo = hi + 1
	}
	l.cells = slices.Replace(l.cells, i, i+1, parts...)
}

// tileRows is what the rows of tiles are a multiple of: the cost of a product
// jumps behind such numbers, so that cells end there.
const tileRows = 64

func (l *linearFloor) aligned(at float64, most units.Tokens) units.Tokens {
	n := units.Tokens(math.Ceil(at))
	if n >= 4*tileRows && n+tileRows < most {
		n = (n + tileRows - 1) / tileRows * tileRows
	}
	return n
}

// leastBetween is a floor of a law over shapes of lo to hi tokens.
//
// Cores never fall as tokens grow, so that theirs is at lo, times the least of
// the correction. The features of a linear law never fall but for its tail, what
// uneven tasks cost, which is left out but for a single number. A curve may step
// down where a piece begins.
func leastBetween(law *costmodel.Law, at func(units.Tokens) op.Shape, lo, hi units.Tokens) float64 {
	first := at(lo)
	switch {
	case lo == hi:
		return float64(law.Seconds(first))
	case law.Curve != nil:
		from, to := op.Volume(first), op.Volume(at(hi))
		least := law.Curve.Seconds(from)
		for _, p := range law.Curve.Pieces {
			if p.From > from && p.From <= to {
				least = min(least, law.Curve.Seconds(p.From))
			}
		}
		return law.Factor() * float64(least)
	case law.Linear != nil:
		f := first.(op.Featured).Features(law.Linear.Parallel)
		k := law.Linear
		body := k.Launch.Value + k.PerFLOP.Value*(f.FLOPs-f.Tail) + k.PerRow.Value*f.Rows + k.PerByte.Value*f.Bytes
		return law.Factor() * body * math.Exp(law.Correction.Least(first, at(hi)))
	}
	return law.Factor() * law.GEMM.Seconds(first.(op.GEMM)) * math.Exp(law.Correction.Least(first, at(hi)))
}

// shapes makes the ops of a job as functions of a rank's tokens.
type shapes struct{ costmodel.Job }

func (j shapes) rows(width int) func(units.Tokens) op.Rowwise {
	return func(s units.Tokens) op.Rowwise { return op.Rowwise{Tokens: s, Width: width, DType: j.DType} }
}

func (j shapes) norm(width int, times float64) call {
	rows := j.rows(width)
	return call{func(s units.Tokens) op.Shape { return op.Norm{Rowwise: rows(s)} }, times}
}

func (j shapes) gemm(pass op.Pass, n, k int) call {
	return call{func(s units.Tokens) op.Shape { return op.GEMM{Pass: pass, M: s, N: n, K: k, DType: j.DType} }, 1}
}

// elementwise lists norms, rotation and activation of a layer.
func (j shapes) elementwise(times float64) []call {
	m := j.Model
	calls := []call{
		j.norm(m.Hidden, times*float64(m.Norms())),
		{func(s units.Tokens) op.Shape { return m.Activated(s, j.DType) }, times},
	}
	q, k := m.HeadNorms()
	for _, width := range []int{q, k} {
		if width > 0 {
			calls = append(calls, j.norm(width, times))
		}
	}
	q, k = m.Rotary()
	for _, width := range []int{q, k} {
		if rows := j.rows(width); width > 0 {
			calls = append(calls, call{func(s units.Tokens) op.Shape { return op.Rope{Rowwise: rows(s)} }, times})
		}
	}
	return calls
}

// weights lists the outputs and inputs of a layer's matrix products.
func (j shapes) weights() [][2]int {
	m := j.Model
	q, kv := m.QHeads*m.HeadDim, m.KVHeads*m.HeadDim
	return [][2]int{{q + 2*kv, m.Hidden}, {m.Hidden, q}, {m.GateUp(), m.Hidden}, {m.Hidden, m.FFN}}
}

func forwardCalls(job costmodel.Job) []call {
	j := shapes{job}
	calls := j.elementwise(1)
	for _, w := range j.weights() {
		calls = append(calls, j.gemm(op.Forward, w[0], w[1]))
	}
	return calls
}

// backwardCalls charges element-wise ops twice, as the simulator does.
func backwardCalls(job costmodel.Job) []call {
	j := shapes{job}
	calls := j.elementwise(2)
	for _, w := range j.weights() {
		calls = append(calls, j.gemm(op.DGrad, w[0], w[1]), j.gemm(op.WGrad, w[0], w[1]))
	}
	return calls
}

// lossCalls lists the final norm, forward and backward, and the ops of a chunk.
// The simulator takes losses in float32.
func lossCalls(job costmodel.Job) []call {
	j := shapes{job}
	m := j.Model
	return []call{
		j.norm(j.Model.Hidden, 3),
		{func(s units.Tokens) op.Shape {
			return op.CEChunk{Rowwise: op.Rowwise{Tokens: s, Width: m.Vocab, DType: op.F32}}
		}, 1},
		j.gemm(op.Forward, m.Vocab, m.Hidden), j.gemm(op.DGrad, m.Vocab, m.Hidden), j.gemm(op.WGrad, m.Vocab, m.Hidden),
	}
}
