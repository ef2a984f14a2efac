package pipeline

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/solver/milp"
)

// recomputation is InfiniPipe's programme for what a flight computes again (its equations 15
// to 20). On stage s of n, from 0, chunk k has
//
//	C[place in the backward order + n-1-s]
//
// layers computed again, for a bubble travels along these anti-diagonals; the sum of C is
// least so that each stage has room for what it holds at once.
type recomputation struct {
	flight   *flight
	stages   int
	most     int // layers of a stage
	rows     []milp.Row
	hopeless bool // does not fit with everything computed again
}

// recomputation makes the programme of a flight on stages. Rows that hold without any
// recomputation are left out. As published it leaves no room for the layer that is computed again
// in the pass at work beside what is held, by which plans are judged; atWork it does.
func (p *Problem) recomputation(stages []pipeline.Stage, f *flight, atWork bool) *recomputation {
	r := &recomputation{flight: f, stages: len(stages)}
	at := f.place()
	for _, x := range stages {
		r.most = max(r.most, x.Layers)
	}
	for s, x := range stages {
		plan := &pipeline.Plan{Stages: stages}
		room, last, layers := float64(p.Capacity(x.Ranks)), s == len(stages)-1, float64(x.Layers)
		if room == 0 {
			continue
		}
		room -= float64(p.States(plan, s))
		whole, saved := make([]float64, len(f.chunks)), make([]float64, len(f.chunks))
		working := 0.0 // what the pass at work takes beside, at most
		for k, c := range f.chunks {
			b := p.Held(x.Ranks, c)
			whole[k], saved[k] = layers*(b.Kept+b.Gradients), max(0, b.Kept-b.Again)
			if last {
				whole[k] += b.Logits
			}
			if atWork {
				b.Transient += b.Kept
			}
			working = max(working, b.Transient)
		}
		room -= working
		f.windows(s, len(stages), func(held []int) {
			sum, least := 0.0, 0.0
			for _, k := range held {
				sum += whole[k]
				least += whole[k] - layers*saved[k]
			}
			if sum <= room {
				return
			}
			r.hopeless = r.hopeless || least > room
			row := milp.Row{Lower: sum - room, Upper: math.Inf(1)}
			// A stage of fewer layers than others has all of them computed again at most, which is
			// no less than its part of C.
			part := layers / float64(r.most)
			for _, k := range held {
				row.Terms = append(row.Terms, milp.Term{Column: at[k] + len(stages) - 1 - s, Value: part * saved[k]})
			}
			r.rows = append(r.rows, row)
		})
	}
	return r
}

// model is the programme; relaxed says that layers may be divided. Rows are scaled, for bytes
// are large numbers.
func (r *recomputation) model(relaxed bool) *milp.Model {
	m := &milp.Model{Columns: make([]milp.Column, len(r.flight.chunks)+r.stages-1)}
	for i := range m.Columns {
		m.Columns[i] = milp.Column{Cost: 1, Upper: float64(r.most), Integer: !relaxed}
	}
	for _, row := range r.rows {
		scaled := milp.Row{Lower: 1, Upper: math.Inf(1), Terms: slices.Clone(row.Terms)}
		for i := range scaled.Terms {
			scaled.Terms[i].Value /= row.Lower
		}
		m.Rows = append(m.Rows, scaled)
	}
	return m
}

// solution is C with its sum; and a sum that no C is below.
type solution struct {
	layers []int
	sum    int
	bound  float64
}

// programmeGap is by what share InfiniPipe's solver may miss the least sum.
const programmeGap = 0.02

// exact solves the programme; nil if it has no solution, or none is found in time.
func (r *recomputation) exact(ctx context.Context, limit time.Duration) (*solution, error) {
	if done, ok := r.trivial(); ok {
		return done, nil
	}
	rounded, err := r.rounded(ctx)
	if err != nil || rounded == nil {
		return nil, err
	}
	m := r.model(false)
	start := make([]float64, len(m.Columns))
	for i, n := range rounded.layers {
		start[i] = float64(n)
	}
	found, err := milp.Solve(ctx, m, milp.Options{CPULimit: limit, Gap: programmeGap, Start: start})
	if err != nil || found.X == nil {
		return rounded, err
	}
	out := &solution{layers: make([]int, len(found.X)), bound: max(rounded.bound, found.Bound)}
	for i, v := range found.X {
		out.layers[i] = int(math.Round(v))
		out.sum += out.layers[i]
	}
	return out, nil
}

// trivial is the solution where there is nothing to solve.
func (r *recomputation) trivial() (*solution, bool) {
	if r.hopeless {
		return nil, true
	}
	if len(r.rows) == 0 {
		return &solution{layers: make([]int, len(r.flight.chunks)+r.stages-1)}, true
	}
	return nil, false
}

// rounded divides layers, which is a linear programme; rounds up; and lowers what it can, the
// most first. Nil if there is no solution, or none is found in time.
func (r *recomputation) rounded(ctx context.Context) (*solution, error) {
	if done, ok := r.trivial(); ok {
		return done, nil
	}
	relaxed, err := milp.Solve(ctx, r.model(true), milp.Options{})
	if err != nil || relaxed.X == nil {
		return nil, err
	}
	out := &solution{layers: make([]int, len(relaxed.X)), bound: relaxed.Objective}
	for i, v := range relaxed.X {
		out.layers[i] = min(r.most, int(math.Ceil(v-1e-6)))
	}
	r.lower(out.layers)
	for _, n := range out.layers {
		out.sum += n
	}
	return out, nil
}

// lower takes layers away while every row still holds, where there are most first.
func (r *recomputation) lower(layers []int) {
	order := make([]int, len(layers))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return layers[b] - layers[a] })
	spare := make([]float64, len(r.rows))
	uses := make([][][2]float64, len(layers)) // by column: rows, and what a layer saves in them
	for i, row := range r.rows {
		spare[i] = -row.Lower
		for _, t := range row.Terms {
			spare[i] += t.Value * float64(layers[t.Column])
			uses[t.Column] = append(uses[t.Column], [2]float64{float64(i), t.Value})
		}
	}
	for _, c := range order {
		for layers[c] > 0 && !slices.ContainsFunc(uses[c], func(u [2]float64) bool { return spare[int(u[0])] < u[1] }) {
			layers[c]--
			for _, u := range uses[c] {
				spare[int(u[0])] -= u[1]
			}
		}
	}
}

// of is, by stage and chunk, the layers that a solution has computed again.
func (r *recomputation) of(s *solution, stages []pipeline.Stage) [][]int {
	at := r.flight.place()
	out := make([][]int, r.stages)
	for i := range out {
		for k := range r.flight.chunks {
			out[i] = append(out[i], min(stages[i].Layers, s.layers[at[k]+r.stages-1-i]))
		}
	}
	return out
}
