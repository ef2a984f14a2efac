package comparison

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Pair is a stretch of a step as predicted and as measured. The measured time is the
// median over the blocks.
type Pair struct {
	costmodel.ReplayKey
	Predicted units.Seconds `json:"predicted_s"`
	Measured  units.Seconds `json:"measured_s"`
	Log       float64       `json:"log_predicted_over_measured"` // 0 if either time is 0

	recorded bool // in some block
}

// Both says whether the pair has a ratio, which takes both times: a stretch that took no
// time, or a short wait that was not predicted, has none.
func (p Pair) Both() bool { return p.Predicted > 0 && p.Measured > 0 }

// Class sums up the stretches of one op in one direction, on one rank or on all. Times
// are sums over the stretches of one step. Errors are |log(predicted/measured)| over the
// pairs that have a ratio.
type Class struct {
	Op        costmodel.ReplayOp `json:"op"`
	Dir       string             `json:"dir"`
	Again     bool               `json:"again,omitzero"` // the forward pass of recomputation
	Rank      int                `json:"rank"`           // AllRanks for all of them
	Stretches int                `json:"n"`
	Compared  int                `json:"compared"` // stretches that have a ratio
	Predicted units.Seconds      `json:"predicted_s"`
	Measured  units.Seconds      `json:"measured_s"`
	MeanError float64            `json:"mean_error"`
	Bias      float64            `json:"bias_log_predicted_over_measured"` // median of the logs
	P95       float64            `json:"p95_error"`
	Worst     []Pair             `json:"worst,omitempty"` // largest error first
}

// AllRanks stands for the rank of a class that is of all of them.
const AllRanks = -1

// mostWorst is how many of the worst pairs a class lists.
const mostWorst = 5

// join pairs a plan's stretches. A rank may lack ops, in the prediction or in
// the recording: what only one side has is paired with nothing.
func join(tasks []costmodel.ReplayTask, runs []run) []Pair {
	predicted := map[costmodel.ReplayKey]units.Seconds{}
	for _, k := range tasks {
		predicted[joined(k.ReplayKey)] += k.Time
	}
	measured := map[costmodel.ReplayKey][]float64{}
	for b := range runs {
		for _, s := range runs[b].all() {
			if measured[s.ReplayKey] == nil {
				measured[s.ReplayKey] = make([]float64, len(runs))
			}
			measured[s.ReplayKey][b] += float64(s.took)
		}
	}
	var pairs []Pair
	for k, t := range predicted {
		if t > 0 || measured[k] != nil {
			pairs = append(pairs, newPair(k, t, measured[k]))
		}
	}
	for k, took := range measured {
		if _, ok := predicted[k]; !ok {
			pairs = append(pairs, newPair(k, 0, took))
		}
	}
	slices.SortFunc(pairs, func(a, b Pair) int { return compareKeys(a.ReplayKey, b.ReplayKey) })
	return pairs
}

// all are the spans of all ranks, from each rank's zero on, meetings included.
func (r *run) all() []span {
	var all []span
	for m, laps := range r.laps {
		for rank, l := range laps {
			for _, s := range l.spans {
				s.start += l.start
				all = append(all, s)
			}
			if l.meet > 0 {
				k := costmodel.ReplayKey{Rank: rank, Micro: m, Dir: costmodel.BackwardPass, Op: costmodel.MeetOp}
				all = append(all, span{ReplayKey: k, start: l.start + l.took, took: l.meet})
			}
		}
	}
	return all
}

func newPair(k costmodel.ReplayKey, predicted units.Seconds, took []float64) Pair {
	p := Pair{ReplayKey: k, Predicted: predicted, recorded: took != nil}
	if took != nil {
		p.Measured = units.Seconds(stats.Median(took))
	}
	if p.Both() {
		p.Log = math.Log(float64(p.Predicted / p.Measured))
	}
	return p
}

func compareKeys(a, b costmodel.ReplayKey) int {
	return cmp.Or(compareKinds(kindOf(a), kindOf(b)), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Micro, b.Micro), cmp.Compare(a.Layer, b.Layer), cmp.Compare(a.Step, b.Step), cmp.Compare(a.Chunk, b.Chunk))
}

// kindOf is what of a key a class has, over all ranks.
func kindOf(k costmodel.ReplayKey) costmodel.ReplayKey {
	return costmodel.ReplayKey{Rank: AllRanks, Op: k.Op, Dir: k.Dir, Again: k.Again}
}

// compareKinds puts forward before backward, with what is run again between, and
// ops in the order of a layer.
func compareKinds(a, b costmodel.ReplayKey) int {
	ops := costmodel.ReplayOps()
	return cmp.Or(cmp.Compare(passOf(a), passOf(b)), cmp.Compare(slices.Index(ops, a.Op), slices.Index(ops, b.Op)), cmp.Compare(a.Rank, b.Rank))
}

func passOf(k costmodel.ReplayKey) int {
	switch {
	case k.Dir == costmodel.BackwardPass:
		return 2
	case k.Again:
		return 1
	}
	return 0
}

// classes sorts pairs into classes: of all ranks, or of each.
func classes(pairs []Pair, each bool) []Class {
	of := map[costmodel.ReplayKey][]Pair{}
	var order []costmodel.ReplayKey
	for _, p := range pairs {
		k := kindOf(p.ReplayKey)
		if each {
			k.Rank = p.Rank
		}
		if of[k] == nil {
			order = append(order, k)
		}
		of[k] = append(of[k], p)
	}
	slices.SortFunc(order, compareKinds)
	all := make([]Class, len(order))
	for i, k := range order {
		all[i] = Class{Op: k.Op, Dir: k.Dir, Again: k.Again, Rank: k.Rank}
		all[i].fill(of[k])
	}
	return all
}

func (c *Class) fill(pairs []Pair) {
	var logs, errs []float64
	var worst []Pair
	for _, p := range pairs {
		c.Stretches++
		c.Predicted, c.Measured = c.Predicted+p.Predicted, c.Measured+p.Measured
		if p.Both() {
			logs, errs, worst = append(logs, p.Log), append(errs, math.Abs(p.Log)), append(worst, p)
		}
	}
	if c.Compared = len(logs); c.Compared == 0 {
		return
	}
	for _, e := range errs {
		c.MeanError += e / float64(len(errs))
	}
	c.Bias, c.P95 = stats.Median(logs), stats.Quantile(errs, 0.95)
	slices.SortStableFunc(worst, func(a, b Pair) int { return cmp.Compare(math.Abs(b.Log), math.Abs(a.Log)) })
	c.Worst = worst[:min(mostWorst, len(worst))]
}

// computeError is the mean error of the stretches of computing, weighted by
// their measured time, so that a merge of microseconds does not outvote the
// attention it belongs to; both together are a stretch. n is how many it is of.
func computeError(pairs []Pair) (mean float64, n int) {
	type sums struct{ predicted, measured units.Seconds }
	of := map[costmodel.ReplayKey]sums{}
	var order []costmodel.ReplayKey
	for _, p := range pairs {
		if p.Op.Waits() {
			continue
		}
		k := stretch(p.ReplayKey)
		s, ok := of[k]
		if !ok {
			order = append(order, k)
		}
		of[k] = sums{s.predicted + p.Predicted, s.measured + p.Measured}
	}
	var sum, weight float64
	for _, k := range order {
		if s := of[k]; s.predicted > 0 && s.measured > 0 {
			sum += float64(s.measured) * math.Abs(math.Log(float64(s.predicted/s.measured)))
			weight += float64(s.measured)
			n++
		}
	}
	if n == 0 {
		return 0, 0
	}
	return sum / weight, n
}
