package bound

import "math"

// ringWork is what the floors of a scope's layouts of several groups, or of a lone
// rank, are made of.
type ringWork struct {
	f       *floors
	scope   scope
	x       exchanged
	classes []class
	rest    float64 // seconds of a step outside its layers and the loss
}

func (f *floors) ringOf(s scope) *ringWork {
	x := f.exchange(s)
	return &ringWork{f, s, x, f.classes(s), x.open + f.optimizer(s)}
}

// inLevels is a floor of a weighted sum of stages by the tokens of groups, which take
// long, and count most where they count often.
func (r *ringWork) inLevels(forward, backward, loss, beside float64) *leastWork {
	w := newLeastWork(r.f.job, r.classes, [stageCount]float64{forward, backward, loss})
	w.ranks, w.beside, w.singles, w.twoBatch = r.scope.most, beside, r.scope.most == 2, r.f.twoBatch
	return w
}

// work is one whatever the groups.
func (r *ringWork) work(forward, backward, loss, beside float64) *leastWork {
	w := r.inLevels(forward, backward, loss, beside)
	w.levels = nil
	return w
}

// joint is one rank's sum of all stages of a step.
func (r *ringWork) joint() *leastWork {
	layers, micro, again := r.f.counts()
	return r.work(layers*micro*(1+again), layers*micro, micro, (layers-1)*micro*(r.x.forward+r.x.backward))
}

// ofRing is the floor of the layouts of several groups, or of a lone rank, or more
// than enough where it proves that to be.
func (f *floors) ofRing(s scope, enough float64) float64 {
	r := f.ringOf(s)
	x, rest, joint := r.x, r.rest, r.joint()
	layers, micro, again := f.counts()
	if !math.IsInf(enough, 1) && (rest > enough || joint.tooSmall(enough-rest)) {
		return math.Inf(1)
	}
	// A layer with nothing to hide is soon known, and well enough: there is one of it.
	bare, loss := passes{r.work(1, 0, 0, 0).about(), r.work(again, 1, 0, 0).about()}, r.work(0, 0, 1, 0).about()
	layersOf := func(alone, more passes) float64 {
		hidden := max(alone.forward, x.forward+more.forward) + max(alone.backward, x.backward+again*more.forward+more.backward)
		return micro*(bare.forward+bare.backward+(layers-1)*hidden+loss) + (layers-1)*max(0, x.last-f.atOnce()*alone.backward) + rest
	}
	if !math.IsInf(enough, 1) && layersOf(bare, passes{}) > enough {
		return math.Inf(1)
	}
	together := joint.solve()
	if math.IsInf(together, 1) {
		return together
	}
	alone := passes{r.inLevels(1, 0, 0, x.forward).from(bare.forward, exact), r.inLevels(again, 1, 0, x.backward).from(bare.backward, exact)}
	apart := func(more passes) float64 { return layersOf(alone, more) }
	base := max(together+rest, apart(passes{}))
	if s.least == 1 || base > enough {
		return base
	}
	weights := [stageCount]float64{layers * micro * (1 + again), layers * micro, micro}
	return f.byPorts(s, &groupWork{classes: r.classes, weights: weights, beside: rest, base: base, pairs: joint.attention}, apart)
}
