package kernel

import "math"

// RelErr is ||got-want|| / ||want|| in the 2-norm, the absolute ||got|| where want is all zeros. It is +Inf if the lengths
// differ or any element of either is not finite, so that a forgotten element or an overflow never passes a limit.
func RelErr(got []float32, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	var diff, norm float64
	for i, w := range want {
		d := float64(got[i]) - w
		diff += d * d
		norm += w * w
	}
	if norm == 0 {
		norm = 1
	}
	if e := math.Sqrt(diff / norm); !math.IsNaN(e) {
		return e
	}
	return math.Inf(1)
}

// RefAttentionForward is AttentionForward without blocks, in float64: whole score rows, two passes. a.O and a.LSE are not
// read and may be nil.
func RefAttentionForward(s AttentionShape, a Attention) (o, lse []float64) {
	o, lse = make([]float64, s.QSize()), make([]float64, s.LSESize())
	for h := range s.QHeads {
		for i := range s.QLen {
			row := h*s.QLen + i
			scores := refScores(s, a, h, i)
			lse[row] = refLogSumExp(scores)
			out := o[row*s.HeadDim:][:s.HeadDim]
			for j, x := range scores {
				p := math.Exp(x - lse[row])
				for d, v := range refKV(s, a.V, h, j) {
					out[d] += p * float64(v)
				}
			}
		}
	}
	return o, lse
}

// RefAttentionBackward is AttentionBackward without blocks, in float64, from the same float32 inputs: a.O and a.LSE are
// the global ones. Only g.DO is read.
func RefAttentionBackward(s AttentionShape, a Attention, g AttentionGrad) (dq, dk, dv []float64) {
	dq, dk, dv = make([]float64, s.QSize()), make([]float64, s.KVSize()), make([]float64, s.KVSize())
	scale := 1 / math.Sqrt(float64(s.HeadDim))
	for h := range s.QHeads {
		for i := range s.QLen {
			row := h*s.QLen + i
			at := func(t []float32) []float32 { return t[row*s.HeadDim:][:s.HeadDim] }
			delta := refDot(at(g.DO), at(a.O))
			for j, x := range refScores(s, a, h, i) {
				p := math.Exp(x - float64(a.LSE[row]))
				ds := p * (refDot(at(g.DO), refKV(s, a.V, h, j)) - delta) * scale
				kv := (s.kvHead(h)*s.KVLen + j) * s.HeadDim
				for d := range s.HeadDim {
					dq[row*s.HeadDim+d] += ds * float64(a.K[kv+d])
					dk[kv+d] += ds * float64(a.Q[row*s.HeadDim+d])
					dv[kv+d] += p * float64(g.DO[row*s.HeadDim+d])
				}
			}
		}
	}
	return dq, dk, dv
}

// refScores are the scaled scores of query i of head h against every key it sees.
func refScores(s AttentionShape, a Attention, h, i int) []float64 {
	scores := make([]float64, s.visible(i, 0, s.KVLen))
	for j := range scores {
		q := a.Q[(h*s.QLen+i)*s.HeadDim:][:s.HeadDim]
		scores[j] = refDot(q, refKV(s, a.K, h, j)) / math.Sqrt(float64(s.HeadDim))
	}
	return scores
}

// refKV is row j of the KV head that query head h reads.
func refKV(s AttentionShape, t []float32, h, j int) []float32 {
	return t[(s.kvHead(h)*s.KVLen+j)*s.HeadDim:][:s.HeadDim]
}

func refDot(x, y []float32) (sum float64) {
	for i := range x {
		sum += float64(x[i]) * float64(y[i])
	}
	return sum
}

func refLogSumExp(x []float64) float64 {
	top := math.Inf(-1)
	for _, v := range x {
		top = max(top, v)
	}
	if math.IsInf(top, -1) {
		return top
	}
	sum := 0.0
	for _, v := range x {
		sum += math.Exp(v - top)
	}
	return top + math.Log(sum)
}

// RefLSEMerge is LSEMerge in float64.
func RefLSEMerge(s MergeShape, a, b Partial) (o, lse []float64) {
	rows := s.Tokens * s.QHeads
	o, lse = make([]float64, rows*s.HeadDim), make([]float64, rows)
	for r := range rows {
		lse[r] = refLogSumExp([]float64{float64(a.LSE[r]), float64(b.LSE[r])})
		if math.IsInf(lse[r], -1) {
			continue
		}
		wa, wb := math.Exp(float64(a.LSE[r])-lse[r]), math.Exp(float64(b.LSE[r])-lse[r])
		for i := r * s.HeadDim; i < (r+1)*s.HeadDim; i++ {
			o[i] = wa*float64(a.O[i]) + wb*float64(b.O[i])
		}
	}
	return o, lse
}

// RefGEMMForward is GEMMForward in float64.
func RefGEMMForward(s GEMMShape, a, b []float32) []float64 {
	c := make([]float64, s.M*s.N)
	s.each(func(i, j, l int) { c[i*s.N+j] += float64(a[i*s.K+l]) * float64(b[l*s.N+j]) })
	return c
}

// RefGEMMDGrad is GEMMDGrad in float64.
func RefGEMMDGrad(s GEMMShape, dc, b []float32) []float64 {
	da := make([]float64, s.M*s.K)
	s.each(func(i, j, l int) { da[i*s.K+l] += float64(dc[i*s.N+j]) * float64(b[l*s.N+j]) })
	return da
}

// RefGEMMWGrad is GEMMWGrad in float64.
func RefGEMMWGrad(s GEMMShape, a, dc []float32) []float64 {
	db := make([]float64, s.K*s.N)
	s.each(func(i, j, l int) { db[l*s.N+j] += float64(a[i*s.K+l]) * float64(dc[i*s.N+j]) })
	return db
}

// each visits every (row of C, column of C, inner index).
func (s GEMMShape) each(visit func(i, j, l int)) {
	for i := range s.M {
		for l := range s.K {
			for j := range s.N {
				visit(i, j, l)
			}
		}
	}
}

// RefNorm is Norm in float64.
func RefNorm(s Rows, x, w []float32, eps float32) []float64 {
	y := make([]float64, s.Size())
	for r := range s.Tokens {
		row := x[r*s.Width : (r+1)*s.Width]
		rms := math.Sqrt(refDot(row, row)/float64(s.Width) + float64(eps))
		for i, v := range row {
			y[r*s.Width+i] = float64(v) * float64(w[i]) / rms
		}
	}
	return y
}

// RefRope is Rope in float64; x is left alone.
func RefRope(s RopeShape, x, cos, sin []float32) []float64 {
	y, half := make([]float64, len(x)), s.HeadDim/2
	for r := range s.Heads * s.Tokens {
		for i := range half {
			at, angle := r*s.HeadDim+i, r%s.Tokens*half+i
			a, b := float64(x[at]), float64(x[at+half])
			c, sn := float64(cos[angle]), float64(sin[angle])
			y[at], y[at+half] = a*c-b*sn, b*c+a*sn
		}
	}
	return y
}

// RefSwiGLU is SwiGLU in float64.
func RefSwiGLU(s Rows, gate, up []float32) []float64 {
	out := make([]float64, s.Size())
	for i := range out {
		g := float64(gate[i])
		out[i] = g / (1 + math.Exp(-g)) * float64(up[i])
	}
	return out
}

// RefGELU is GELU in float64, by the tanh that defines it.
func RefGELU(s Rows, x []float32) []float64 {
	out := make([]float64, s.Size())
	for i := range out {
		v := float64(x[i])
		out[i] = v / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
	}
	return out
}

// RefCEChunk is CEChunk in float64; logits are left alone.
func RefCEChunk(s Rows, logits []float32, targets []int32, gradScale float32) (grad, losses []float64) {
	grad, losses = make([]float64, s.Size()), make([]float64, s.Tokens)
	for t := range s.Tokens {
		row := make([]float64, s.Width)
		for i := range row {
			row[i] = float64(logits[t*s.Width+i])
		}
		lse := refLogSumExp(row)
		losses[t] = lse - row[targets[t]]
		for i, x := range row {
			grad[t*s.Width+i] = float64(gradScale) * math.Exp(x-lse)
		}
		grad[t*s.Width+int(targets[t])] -= float64(gradScale)
	}
	return grad, losses
}

// RefAdamW is AdamW in float64; s is left alone.
func RefAdamW(h AdamWParams, s AdamWState) (param, moment1, moment2 []float64) {
	n := len(s.Param)
	param, moment1, moment2 = make([]float64, n), make([]float64, n), make([]float64, n)
	b1, b2, lr := float64(h.Beta1), float64(h.Beta2), float64(h.LearningRate)
	for i := range n {
		g, p := float64(s.Grad[i]), float64(s.Param[i])
		m, v := b1*float64(s.Moment1[i])+(1-b1)*g, b2*float64(s.Moment2[i])+(1-b2)*g*g
		moment1[i], moment2[i] = m, v
		step := m / (1 - math.Pow(b1, float64(h.Step))) / (math.Sqrt(v/(1-math.Pow(b2, float64(h.Step)))) + float64(h.Eps))
		param[i] = p - lr*(step+float64(h.WeightDecay)*p)
	}
	return param, moment1, moment2
}
