package pipeline

import (
	"cmp"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/pipeline"
)

// cuts are the ways to cut a type's devices into stages of as many each: within every node, or
// of as many whole nodes of one size. What is left over is left out.
func (p *Problem) cuts(t pipeline.Type) [][]pipeline.Stage {
	var all [][]pipeline.Stage
	add := func(stages []pipeline.Stage) {
		if len(stages) > 0 && len(stages) <= min(p.Layers, mostStages) && p.Fits(stages[0].Ranks) == nil {
			all = append(all, stages)
		}
	}
	size := 0
	for _, n := range t.Nodes {
		size = max(size, len(n))
	}
	for d := 1; d <= size; d++ {
		var stages []pipeline.Stage
		for _, n := range t.Nodes {
			for ; len(n) >= d; n = n[d:] {
				stages = append(stages, pipeline.Stage{Ranks: n[:d:d]})
			}
		}
		add(stages)
	}
	whole := slices.DeleteFunc(slices.Clone(t.Nodes), func(n []int) bool { return len(n) < size })
	for k := 2; k <= len(whole); k++ {
		var stages []pipeline.Stage
		for nodes := whole; len(nodes) >= k; nodes = nodes[k:] {
			ranks := slices.Concat(nodes[:k]...)
			slices.Sort(ranks)
			stages = append(stages, pipeline.Stage{Ranks: ranks})
		}
		add(stages)
	}
	return all
}

// mostShapes bounds how many sets of stages are looked at.
const mostShapes = 400

// unequalShapes are sets of stages, each of devices of one type, without layers yet: every
// type cut in every way, or left out, the types one behind the other in either direction; of
// very many those with most speed. Where stages are fixed it is these alone.
func (p *Problem) unequalShapes() [][]pipeline.Stage {
	if p.Fixed != nil {
		return [][]pipeline.Stage{p.Fixed}
	}
	shapes := [][]pipeline.Stage{nil}
	types := p.Types()
	for _, t := range types {
		var more [][]pipeline.Stage
		ways := p.cuts(t)
		for _, x := range shapes {
			if len(types) > 1 {
				more = append(more, x)
			}
			for _, cut := range ways {
				if all := slices.Concat(x, cut); len(all) <= min(p.Layers, mostStages) {
					more = append(more, all)
				}
			}
		}
		shapes = p.speediest(more, mostShapes)
	}
	var out [][]pipeline.Stage
	for _, x := range p.speediest(shapes, mostShapes/2) {
		if p.Stages > 0 && len(x) > p.Stages {
			x = x[:p.Stages]
		}
		if len(x) == 0 || p.Stages > 0 && len(x) != p.Stages {
			continue
		}
		out = append(out, x)
		if back := p.reversed(x); back[0].Ranks[0] != x[0].Ranks[0] {
			out = append(out, back)
		}
	}
	return out
}

// speediest are so many of the shapes, those first whose stages together have most layers a
// second.
func (p *Problem) speediest(shapes [][]pipeline.Stage, most int) [][]pipeline.Stage {
	if len(shapes) <= most {
		return shapes
	}
	speeds := make([]float64, len(shapes))
	order := make([]int, len(shapes))
	for i, x := range shapes {
		order[i] = i
		for _, s := range x {
			f, t := p.fitted(s.Ranks), 0.0
			for _, n := range p.Lengths {
				t += f.of(0, n)
			}
			speeds[i] += 1 / t
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(speeds[b], speeds[a]) })
	out := make([][]pipeline.Stage, most)
	for i := range out {
		out[i] = shapes[order[i]]
	}
	return out
}

// reversed has the types in the other direction, the stages of each as they were.
func (p *Problem) reversed(stages []pipeline.Stage) []pipeline.Stage {
	var out []pipeline.Stage
	for to := len(stages); to > 0; {
		from := to - 1
		for from > 0 && p.Device(stages[from-1].Ranks[0]) == p.Device(stages[from].Ranks[0]) {
			from--
		}
		out = append(out, stages[from:to]...)
		to = from
	}
	return out
}

// layered gives stages layers so that the busiest is as little so as can be: one after the
// other each layer to the stage that has least to do with it. each is the seconds of all
// chunks in a layer, extra what a stage has besides, most its layers at most. Fixed stages have
// the layers that they have. It is nil where there is no room.
func (p *Problem) layered(stages []pipeline.Stage, each, extra []float64, most []int) []pipeline.Stage {
	if p.Fixed != nil {
		for s, x := range p.Fixed {
			if most[s] < x.Layers {
				return nil
			}
		}
		return slices.Clone(p.Fixed)
	}
	out := slices.Clone(stages)
	for s := range out {
		if out[s].Layers = 1; most[s] < 1 {
			return nil
		}
	}
	for left := p.Layers - len(out); left > 0; left-- {
		at, least := -1, 0.0
		for s := range out {
			if load := extra[s] + float64(out[s].Layers+1)*each[s]; out[s].Layers < most[s] && (at < 0 || load < least) {
				at, least = s, load
			}
		}
		if at < 0 {
			return nil
		}
		out[at].Layers++
	}
	return out
}
