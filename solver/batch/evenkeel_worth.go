package batch

import "math"

const (
	worthRounds = 40
	worthRate   = 0.5
)

// setWorth finds what devices of each pool are worth: from all alike, the worth w,
// with Σ count·w = 1, at which the work that everyone does where it is cheapest,
// Σ_k min_c value_c t_kc, is most. That is a bound of the time (quickBound), and
// at the most the pools are equally busy. A pool that is busier than the others
// becomes dearer.
func (t *table) setWorth() {
	t.setAlike()
	if len(t.worth) == 1 {
		return
	}
	reps := t.representatives()
	best := append([]float64(nil), t.worth...)
	busy := make([]float64, len(t.worth))
	most := 0.0
	for round := range worthRounds {
		if work := t.spread(reps, busy); work > most {
			most = work
			copy(best, t.worth)
		}
		mean, total := 0.0, 0.0
		for i, b := range busy {
			mean += b * t.worth[i] * float64(t.size[i])
		}
		for i, b := range busy {
			step := max(-1, min(1, b/mean-1))
			t.worth[i] *= math.Exp(worthRate / (1 + float64(round)/5) * step)
			total += t.worth[i] * float64(t.size[i])
		}
		for i := range t.worth {
			t.worth[i] /= total
		}
		t.setValues()
	}
	copy(t.worth, best)
	t.setValues()
}

// setAlike makes all devices worth the same.
func (t *table) setAlike() {
	n := 0
	for _, size := range t.size {
		n += size
	}
	for i := range t.worth {
		t.worth[i] = 1 / float64(n)
	}
	t.setValues()
}

// representative stands for items of similar length, in proportion to tokens.
type representative struct {
	item int
	n    float64
}

func (t *table) representatives() []representative {
	var reps []representative
	for k, s := range t.tokens {
		last := len(reps) - 1
		if last < 0 || s < t.tokens[reps[last].item]*15/16 {
			reps = append(reps, representative{item: k})
			last++
		}
		reps[last].n += float64(s) / float64(t.tokens[reps[last].item])
	}
	return reps
}

// spread gives the work where it is cheapest, and how long each device is busy.
func (t *table) spread(reps []representative, busy []float64) float64 {
	clear(busy)
	work := 0.0
	for _, r := range reps {
		least, at := math.Inf(1), 0
		for c, times := range t.time {
			if w := t.value[c] * times[r.item]; w < least {
				least, at = w, c
			}
		}
		work += r.n * least
		for i, u := range t.uses[at] {
			busy[i] += r.n * float64(u) * t.time[at][r.item] / float64(t.size[i])
		}
	}
	return work
}

// addUseful adds the classes that are nearly the cheapest for some item under
// some roof to those the filler forms groups of.
func (t *table) addUseful(levels []float64, step int) {
	reps := t.representatives()
	kept := make([]bool, len(t.base))
	for _, c := range t.useful {
		kept[c] = true
	}
	shares := make([]float64, len(t.base))
	for i := 0; i < len(levels); i += step {
		roof := levels[i]
		for _, r := range reps {
			least := math.Inf(1)
			for c := range shares {
				shares[c] = t.shareOf(c, r.item, roof)
				least = min(least, shares[c])
			}
			for c, share := range shares {
				if share <= least*usefulWithin && !math.IsInf(share, 1) {
					kept[c] = true
				}
			}
		}
	}
	t.useful = t.useful[:0]
	for c, k := range kept {
		if k {
			t.useful = append(t.useful, c)
		}
	}
}

// usefulWithin is how near the cheapest a class must come to be kept.
const usefulWithin = 1.1
