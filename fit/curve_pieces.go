package fit

import (
	"errors"
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Bounds of the search for protocol switches. No library that was recorded has more pieces,
// and of more places for a cut several lie between two points that matter.
const (
	mostPieces     = 16
	mostPlaces     = 400
	fewestSeveral  = 3  // pieces; one and two are forms of their own
	sizesAPiece    = 30 // on average, at least: few sizes tell no switch from noise
	pieceParameter = 4  // alpha, beta, and where it begins, which counts twice (Zhang and Siegmund 2007)
	// pieceNoise is the least relative error of a piece that counts, squared: below what a
	// recording repeats to, a better fit is luck.
	pieceNoise = 0.005 * 0.005
)

// severalPieces fits three or more pieces alpha + beta x, which need not meet: a library that
// changes its protocol, or the number of its channels, with the size may be twice as slow
// just below a switch as above it, and back again at the next (NCCL among 16 A100 on two
// nodes, as Vidur recorded it: at 13, 16.8, 21.2 and 33.5 MB). Cuts come from the optimal
// partition by least squares of the relative error (Bellman 1961), their number from the
// Bayesian information criterion (Schwarz 1978), pieces from the robust fit of one.
//
// points are sorted by size.
func severalPieces(points []Point) (*costmodel.Curve, error) {
	p := newPartition(points)
	best := math.Inf(1)
	var cuts []int
	for n := fewestSeveral; n <= min(mostPieces, p.sizes/sizesAPiece); n++ {
		loss, at := p.into(n)
		if at == nil {
			break
		}
		count := float64(len(points))
		if score := count*math.Log(loss/count+pieceNoise) + pieceParameter*float64(n)*math.Log(count); score < best {
			best, cuts = score, at
		}
	}
	if cuts == nil {
		return nil, errors.New("too few sizes for three pieces")
	}
	c := &costmodel.Curve{Form: costmodel.AlphaBeta}
	for i, from := range cuts {
		to := len(points)
		if i+1 < len(cuts) {
			to = cuts[i+1]
		}
		one, _, err := piece(points[from:to])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			one.From = op.Volume(points[from].Shape)
		}
		c.Pieces = append(c.Pieces, one)
	}
	return c, nil
}

// partition divides points, sorted by size, into runs of fewestInPiece and more, each with
// its own alpha + beta x.
type partition struct {
	sizes  int         // that differ
	places []int       // where a piece may begin or end: from 0 to the number of points
	sums   []pieceSums // over the points before a place
	least  [][]float64 // by number of pieces less one and place: loss of the points before it
	from   [][]int     // where the last of these pieces begins
}

// pieceSums are over points, of relative errors 1 - alpha/t - beta x/t.
type pieceSums struct{ n, aa, ab, bb, a, b float64 }

func newPartition(points []Point) *partition {
	p := &partition{}
	size := func(i int) units.Bytes { return op.Volume(points[i].Shape) }
	largest := float64(max(1, size(len(points)-1))) // keeps the sums of one order
	var sum pieceSums
	step := 1 + len(points)/mostPlaces
	for i := 0; i <= len(points); i++ {
		first := i == 0 || (i < len(points) && size(i) > size(i-1)) // of its size
		if first {
			p.sizes++
		}
		if i == len(points) || (first && i%step == 0) {
			p.places, p.sums = append(p.places, i), append(p.sums, sum)
		}
		if i < len(points) {
			a, b := 1/points[i].Seconds, float64(size(i))/largest/points[i].Seconds
			sum = pieceSums{sum.n + 1, sum.aa + a*a, sum.ab + a*b, sum.bb + b*b, sum.a + a, sum.b + b}
		}
	}
	return p
}

// loss is the sum of squared relative errors of one piece between two places, with alpha
// and beta of least squares that are not negative.
func (p *partition) loss(from, to int) float64 {
	x, y := p.sums[from], p.sums[to]
	s := pieceSums{y.n - x.n, y.aa - x.aa, y.ab - x.ab, y.bb - x.bb, y.a - x.a, y.b - x.b}
	best := math.Inf(1)
	if det := s.aa*s.bb - s.ab*s.ab; det > 1e-9*s.aa*s.bb {
		alpha, beta := (s.a*s.bb-s.b*s.ab)/det, (s.b*s.aa-s.a*s.ab)/det
		if alpha >= 0 && beta >= 0 {
			return max(0, s.n-alpha*s.a-beta*s.b)
		}
	}
	if s.aa > 0 {
		best = s.n - s.a*s.a/s.aa
	}
	if s.bb > 0 {
		best = min(best, s.n-s.b*s.b/s.bb)
	}
	return max(0, best)
}

// into divides all points into n pieces with the least loss: where each begins, nil where
// there are too few points. Fewer pieces are asked for first.
func (p *partition) into(n int) (loss float64, begins []int) {
	for len(p.least) < n {
		p.another()
	}
	end := len(p.places) - 1
	if math.IsInf(p.least[n-1][end], 1) {
		return math.Inf(1), nil
	}
	begins = make([]int, n)
	for at, k := end, n-1; k >= 0; k-- {
		at = p.from[k][at]
		begins[k] = p.places[at]
	}
	return p.least[n-1][end], begins
}

// another works out the least losses with one piece more.
func (p *partition) another() {
	k := len(p.least)
	least, from := make([]float64, len(p.places)), make([]int, len(p.places))
	for to := range p.places {
		least[to] = math.Inf(1)
		for at := to - 1; at >= 0; at-- {
			before := 0.0
			switch {
			case p.places[to]-p.places[at] < fewestInPiece:
				continue
			case k > 0:
				before = p.least[k-1][at]
			case at > 0:
				continue
			}
			if before >= least[to] {
				continue
			}
			if loss := before + p.loss(at, to); loss < least[to] {
				least[to], from[to] = loss, at
			}
		}
	}
	p.least, p.from = append(p.least, least), append(p.from, from)
}
