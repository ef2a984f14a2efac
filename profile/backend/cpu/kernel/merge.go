package kernel

import (
	"fmt"
	"math"
)

// Partial is attention over some of the keys: O is normalised over those keys alone, LSE is their log-sum-exp (natural
// log; -Inf for no key at all). O is [rows][head_dim], LSE [rows].
type Partial struct {
	O, LSE []float32
}

// MergeShape is one log-sum-exp merge: Tokens*QHeads rows of HeadDim elements, in any one row order.
type MergeShape struct {
	Tokens, QHeads, HeadDim int
}

// Validate reports a count below 1.
func (s MergeShape) Validate() error {
	if min(s.Tokens, s.QHeads, s.HeadDim) < 1 {
		return fmt.Errorf("kernel: merge shape %+v: every count must be at least 1", s)
	}
	return nil
}

func (p Partial) check(name string, s MergeShape) {
	wantLen(name+".O", p.O, s.Tokens*s.QHeads*s.HeadDim)
	wantLen(name+".LSE", p.LSE, s.Tokens*s.QHeads)
}

// LSEMerge writes the attention over the union of a's and b's keys: with w = 1/(1+exp(lse_b-lse_a)) the weight of a,
// o = w*o_a + (1-w)*o_b and lse = log(exp(lse_a)+exp(lse_b)). out may be a or b.
func LSEMerge(s MergeShape, out, a, b Partial, team *Team) {
	must(s.Validate())
	out.check("out", s)
	a.check("a", s)
	b.check("b", s)
	overRows(s.Tokens*s.QHeads, team, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			wa, wb, lse := mergeWeights(a.LSE[r], b.LSE[r])
			from, to := r*s.HeadDim, (r+1)*s.HeadDim
			x, y := a.O[from:to], b.O[from:to]
			for i := range out.O[from:to] {
				out.O[from+i] = wa*x[i] + wb*y[i]
			}
			out.LSE[r] = lse
		}
	})
}

// mergeWeights is the two-term softmax of the log-sum-exps, relative to the larger so that nothing overflows.
func mergeWeights(a, b float32) (wa, wb, lse float32) {
	top := max(a, b)
	if math.IsInf(float64(top), -1) {
		return 0, 0, top
	}
	ea, eb := exp32(a-top), exp32(b-top)
	sum := ea + eb
	return ea / sum, eb / sum, top + float32(math.Log(float64(sum)))
}
