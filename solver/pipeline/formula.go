package pipeline

import (
	"math"

	"gonum.org/v1/gonum/mat"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
)

// formula is what InfiniPipe takes a layer to take, forward and backward, for tokens behind
// a context (its equation 1), in seconds:
//
//	square ((C+s)² - C²) + token s,  and each for every chunk
type formula struct{ square, token, each float64 }

// fitted is the formula of a stage's ranks.
func (p *Problem) fitted(ranks []int) formula {
	like := p.Like(ranks)
	f, ok := p.fits[like]
	if !ok {
		f = p.fit(ranks)
		if p.fits == nil {
			p.fits = map[int]formula{}
		}
		p.fits[like] = f
	}
	return f
}

// fit is by least squares of relative errors over contexts and slices up to the longest
// sequence.
func (p *Problem) fit(ranks []int) formula {
	longest := units.Tokens(0)
	for _, n := range p.Lengths {
		longest = max(longest, n)
	}
	var rows, ones []float64
	for s := max(1, min(longest, 256)); s <= longest; s = min(2*s, longest) {
		for _, c := range []units.Tokens{0, s, 3 * s, longest - s} {
			if c < 0 || c+s > longest {
				continue
			}
			w := p.Work(ranks, pipeline.Chunk{Sequence: 0, Context: c, Slice: s})
			t := float64(w.Forward + w.Backward)
			if !(t > 0) || math.IsInf(t, 1) {
				continue
			}
			rows = append(rows, squares(c, s)/t, float64(s)/t, 1/t)
			ones = append(ones, 1)
		}
		if s == longest {
			break
		}
	}
	f, ok := regression(rows, ones, 3)
	if !ok || f[2] < 0 { // a chunk by itself takes no less than nothing
		var two []float64
		for i := 0; i < len(rows); i += 3 {
			two = append(two, rows[i], rows[i+1])
		}
		if f, ok = regression(two, ones, 2); !ok {
			return formula{token: 1}
		}
		f = append(f, 0)
	}
	return formula{max(0, f[0]), max(0, f[1]), f[2]}
}

func squares(context, tokens units.Tokens) float64 {
	c, s := float64(context), float64(tokens)
	return (2*c + s) * s
}

// regression solves rows x = right by least squares; columns are scaled first, for squares
// of tokens and single chunks differ by ten orders.
func regression(rows, right []float64, n int) ([]float64, bool) {
	if len(right) < n {
		return nil, false
	}
	scale := make([]float64, n)
	for i, v := range rows {
		scale[i%n] = max(scale[i%n], math.Abs(v))
	}
	scaled := make([]float64, len(rows))
	for i, v := range rows {
		if scale[i%n] == 0 {
			return nil, false
		}
		scaled[i] = v / scale[i%n]
	}
	var x mat.VecDense
	if err := x.SolveVec(mat.NewDense(len(right), n, scaled), mat.NewVecDense(len(right), right)); err != nil {
		return nil, false
	}
	out := make([]float64, n)
	for i := range out {
		out[i] = x.AtVec(i) / scale[i]
	}
	return out, true
}

// of is the seconds of tokens behind a context.
func (f formula) of(context, tokens units.Tokens) float64 {
	return f.square*squares(context, tokens) + f.token*float64(tokens)
}

// upTo is how many tokens behind no context take so many seconds.
func (f formula) upTo(t float64) float64 {
	if f.square == 0 {
		return t / f.token
	}
	return (math.Sqrt(f.token*f.token+4*f.square*t) - f.token) / (2 * f.square)
}
